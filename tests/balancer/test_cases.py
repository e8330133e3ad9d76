"""Cases of people who balance training data, by their numbers: U50, U51, U53, U54."""

from __future__ import annotations

import numpy as np
import pytest

from balancer import CostModel, Topology, admission, plan_step
from balancer.sharding import aligned_lengths, alignment, shard


def loads(plan, values):
    """[R] sums of a value of the samples that each rank computes."""
    return [
        int(sum(values[plan.micro_batches.samples(m)].sum() for m in plan.for_rank(rank)))
        for rank in range(plan.ranks)
    ]


@pytest.mark.parametrize(
    ("cost", "value", "expected"),
    [
        (CostModel(linear=1.0), lambda n: n, [12, 12]),
        (CostModel(quadratic=1.0, attention="full"), lambda n: n * n, [64, 64]),
    ],
)
def test_u50_work_is_balanced_and_not_tokens(cost, value, expected):
    lengths = np.array([8, 4, 4, 4, 4])
    plan = plan_step(lengths, topology=Topology(ranks=2), max_tokens=24, cost=cost)
    assert loads(plan, value(lengths)) == expected
    assert plan.imbalance == pytest.approx(1.0)


def test_u50_random_steps_are_near_the_bound_and_never_worse_than_round_robin():
    cost = CostModel(linear=1e-4, quadratic=1e-8)
    draw, gaps = np.random.default_rng(0), []
    for _ in range(1000):
        ranks = int(draw.integers(2, 9))
        lengths = draw.lognormal(6, 1, 8 * ranks).astype(np.int64).clip(1, 16_000)
        plan = plan_step(lengths, topology=Topology(ranks=ranks), max_tokens=1 << 20, cost=cost)
        seconds = cost(lengths)
        bound = max(seconds.sum() / ranks, seconds.max())
        gaps.append(plan.time_s / bound - 1)
        dealt = max(seconds[rank::ranks].sum() for rank in range(ranks))
        assert plan.time_s <= dealt * (1 + 1e-9)
    assert np.median(gaps) <= 0.02
    assert max(gaps) <= 0.10


def test_u51_lengths_that_do_not_divide_are_padded_to_the_least_multiple():
    assert aligned_lengths([7], 2).tolist() == [8]
    assert aligned_lengths([137, 2041, 89], 8).tolist() == [144, 2048, 96]
    pairs = [(2, 1), (2, 4), (3, 3), (4, 2)]
    assert [alignment(degree, tensor_degree=tensor) for degree, tensor in pairs] == [4, 8, 18, 8]
    assert sum(int(shard([7], 2, rank).real.sum()) for rank in range(2)) == 7


def test_u53_each_sample_takes_the_least_ranks_that_hold_it():
    lengths = [3_000, 4_096, 5_000, 9_000, 33_000]
    degrees = (1, 2, 4, 8, 16)
    for ranks, homeless in ((16, []), (8, [4])):
        allowed = tuple(degree for degree in degrees if degree <= ranks)
        found = admission(lengths, topology=Topology(ranks=ranks), max_tokens=4_096, cp_degrees=allowed)
        assert found.rows.tolist() == homeless
        assert {d: n for d, n in found.by_degree.items() if n} == (
            {1: 2, 2: 1, 4: 1, 16: 1} if ranks == 16 else {1: 2, 2: 1, 4: 1}
        )


def test_u53_a_long_sample_shares_four_ranks_while_the_others_work_on_short_ones():
    lengths = np.array([9_000] + [1_000] * 20)
    plan = plan_step(
        lengths,
        topology=Topology(ranks=8),
        max_tokens=4_096,
        cost=CostModel.generic(),
        cp_degrees=(1, 2, 4, 8),
    )
    batches = plan.micro_batches
    [long] = [m for m in range(len(batches)) if 0 in batches.samples(m)]
    assert batches.cp_degree[long] == 4
    assert np.all(batches.first_rank % batches.cp_degree == 0)
    group = range(int(batches.first_rank[long]), int(batches.first_rank[long]) + 4)
    for rank in set(range(8)) - set(group):
        mine = [s for m in plan.for_rank(rank) for s in batches.samples(m).tolist()]
        assert mine
        assert 0 not in mine


def test_u54_attended_pairs_of_windows_chunks_and_stacks():
    def pairs(attention, length):
        return int(CostModel(quadratic=1.0, attention=attention).pairs([length])[0])

    assert pairs("causal", 2_048) == 2_098_176
    assert pairs("window:512", 2_048) == 917_760
    assert pairs("window:4096", 1_000) == 500_500
    assert pairs("chunked:256", 2_048) == 263_168
    assert pairs("1*causal + 3*linear", 2_048) == 2_098_176


def test_u54_a_pack_costs_the_sum_of_its_documents():
    cost = CostModel(quadratic=1.0, attention="window:512")
    lengths = np.array([2_048, 2_048])
    plan = plan_step(lengths, topology=Topology(ranks=1), max_tokens=8_192, cost=cost)
    assert plan.micro_batches.cost_s.sum() == pytest.approx(2 * 917_760)
