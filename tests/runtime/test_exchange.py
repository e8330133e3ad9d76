"""Rows reach the ranks that need them, gradients come back, and nobody hangs."""

import numpy as np
import torch

from balancer import runtime
from balancer.exchange import ExchangeTable
from tests.runtime.test_ranks_agree import tiny_plan
from tests.support.ranks import run_ranks

RANKS = 4


def random_table(seed):
    """Some ranks may send or receive nothing; every row may go to several ranks."""
    random = np.random.default_rng(seed)
    rows = random.integers(0, 5, RANKS)
    rows[random.integers(RANKS)] = 0
    moves = []
    for source in np.flatnonzero(rows):
        for target in random.choice(RANKS, random.integers(0, 3), replace=False):
            start = random.integers(rows[source])
            moves.append((source, start, random.integers(0, rows[source] - start + 1), target))
    random.shuffle(moves)
    columns = np.asarray(moves, dtype=np.int64).reshape(-1, 4).T
    table = ExchangeTable(source=columns[0], start=columns[1], count=columns[2], target=columns[3])
    return table, rows


def all_rows(rows):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(int(n), 2, dtype=torch.float64, generator=generator) for n in rows]


def move_rows(rank, seeds):
    wrong = []
    for seed in seeds:
        table, rows = random_table(seed)
        whole = all_rows(rows)
        mine = whole[rank].clone().requires_grad_(bool(rows[rank]))
        got = runtime.exchange(mine, table)
        moves = list(zip(table.source, table.start, table.count, table.target, strict=True))
        expected = [whole[s][b : b + n] for s, b, n, t in moves if t == rank]
        if not torch.equal(got.detach(), torch.cat([*expected, whole[0][:0]])):
            wrong.append(f"{seed}: rows")
        runtime.keep_in_graph((got * (rank + 1)).sum(), got).backward()
        gradient = torch.zeros_like(mine)
        for s, b, n, t in moves:
            if s == rank:
                gradient[b : b + n] += t + 1
        if rows[rank] and not torch.equal(mine.grad, gradient):
            wrong.append(f"{seed}: gradient")
    return wrong


def test_rows_arrive_in_the_order_of_the_moves_and_gradients_return():
    assert run_ranks(move_rows, RANKS, range(40)) == [[]] * RANKS


def test_two_plans_of_one_step_say_what_moves():
    encoder, language = tiny_plan([0, 1, 2, 3], ranks=2), tiny_plan([3, 2, 1, 0], ranks=2)
    table = ExchangeTable.from_plans(encoder, language, [1, 2, 0, 4])
    # encoder: rank 0 makes samples 0 and 2, rank 1 makes 1 and 3; rank 0 reads 3 and 1, rank 1 reads 2 and 0
    assert table.source.tolist() == [1, 1, 0]
    assert table.start.tolist() == [2, 0, 0]
    assert table.count.tolist() == [4, 2, 1]
    assert table.target.tolist() == [0, 0, 1]


def test_items_lie_on_their_ranks_in_order():
    table = ExchangeTable.between([1, 0, 1], [0, 0, 1], [3, 2, 4])
    assert table.start.tolist() == [0, 0, 3]
