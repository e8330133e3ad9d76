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


ROWS = [3, 1, 0, 4, 2, 5]
MADE_ON = [0, 0, 0, 2, 2, 0]  # ranks 1 and 3 encode nothing
READ_ON = [1, 3, 1, 1, 3, 3]  # ranks 0 and 2 read nothing


class EncoderAndReader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.reader = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
        self.double()

    def forward(self, patches, table=None):
        rows = torch.tanh(self.encoder(patches))
        received = rows if table is None else runtime.exchange(rows, table)
        return self.reader(received).square().sum(), received


def patches_of(items):
    parts = [torch.randn(ROWS[i], 4, generator=torch.Generator().manual_seed(i)).double() for i in items]
    return torch.cat([torch.zeros(0, 4, dtype=torch.float64), *parts])


def encode_and_read(rank):
    model = torch.nn.parallel.DistributedDataParallel(EncoderAndReader())
    table = ExchangeTable.between(MADE_ON, READ_ON, ROWS)
    loss, received = model(patches_of([i for i in range(6) if MADE_ON[i] == rank]), table)
    (runtime.keep_in_graph(loss, received) * RANKS).backward()  # DDP averages
    return [p.grad for p in model.parameters()]


def test_a_model_of_two_phases_has_the_gradient_of_one_process():
    alone = EncoderAndReader()
    alone(patches_of(range(6)))[0].backward()
    for gradients in run_ranks(encode_and_read, RANKS):
        for got, parameter in zip(gradients, alone.parameters(), strict=True):
            torch.testing.assert_close(got, parameter.grad, rtol=1e-9, atol=1e-9)


def hand_over(rank, frozen):
    """Each reader reads its items one by one, all but the first; gradients of what was made here."""
    made = patches_of([i for i in range(6) if MADE_ON[i] == rank]).requires_grad_(not frozen)
    handover = runtime.Handover(made * 2, ExchangeTable.between(MADE_ON, READ_ON, ROWS))
    place, read = 0, [i for i in range(6) if READ_ON[i] == rank]
    for item in read:
        rows = handover.rows(slice(place, place + ROWS[item]))
        assert torch.equal(rows.detach(), patches_of([item]) * 2)
        place += ROWS[item]
        if item != read[0]:
            (rows.sum() * item).backward()
    assert len(handover.rows(slice(None))) == place
    handover.backward()
    return made.grad


def test_rows_handed_over_bring_their_gradients_home_also_where_nothing_is_made_or_read():
    unread = {READ_ON.index(rank) for rank in set(READ_ON)}
    for rank, got in enumerate(run_ranks(hand_over, RANKS, False)):
        factors = [
            0 if i in unread else 2 * i for i in range(6) if MADE_ON[i] == rank for _ in range(ROWS[i])
        ]
        assert got.tolist() == [[factor] * 4 for factor in factors]


def test_a_frozen_encoder_hands_over_all_the_same():
    assert run_ranks(hand_over, RANKS, True) == [None] * RANKS


def test_what_is_kept_in_the_graph_changes_no_loss_and_gets_a_gradient_of_zeros():
    nothing, number = torch.zeros(0, 3, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    large = torch.full((4, 4), 6e4, dtype=torch.float16, requires_grad=True)  # whose sum is infinite
    broken = torch.full((2, 2), float("nan"), dtype=torch.float64, requires_grad=True)
    loss = torch.tensor(1.5, requires_grad=True)
    kept = runtime.keep_in_graph(loss, nothing, number, large, broken)
    assert (kept.item(), kept.dtype) == (1.5, torch.float32)
    kept.backward()
    for tensor in (nothing, number, large, broken):
        assert torch.equal(tensor.grad, torch.zeros_like(tensor))
