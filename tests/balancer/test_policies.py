"""What each policy does, and that the default is better."""

from __future__ import annotations

import numpy as np
import pytest

from balancer import POLICIES, CostModel, Topology, check_plan, plan_step
from balancer.topology import ulysses_degrees


def loads(plan, lengths, cost):
    total = np.zeros(plan.ranks)
    for m in range(len(plan.micro_batches)):
        total[plan.micro_batches.first_rank[m]] += cost(lengths[plan.micro_batches.samples(m)]).sum()
    return sorted(total.tolist())


@pytest.mark.parametrize("policy", ["balanced", "karmarkar_karp", "static_cp"])
def test_work_is_balanced_and_not_tokens(policy):
    lengths = np.array([8, 4, 4, 4, 4])
    linear, square = CostModel(linear=1.0), CostModel(linear=0.0, quadratic=1.0, attention="full")
    for cost, expected in ((linear, [12, 12]), (square, [64, 64])):
        plan = plan_step(lengths, topology=Topology(2), max_tokens=100, cost=cost, policy=policy)
        assert loads(plan, lengths, cost) == pytest.approx(expected)
        assert plan.imbalance == pytest.approx(1.0)
    tokens = plan_step(lengths, topology=Topology(2), max_tokens=100, cost=square, policy="equal_tokens")
    assert tokens.imbalance == pytest.approx(1.25)


def test_the_default_beats_dealing_round_and_stays_near_the_bound():
    cost = CostModel(linear=2e-4, quadratic=1e-8)
    gaps = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        ranks = int(rng.integers(2, 9))
        lengths = np.maximum(1, rng.lognormal(6.5, 1.0, ranks * 8)).astype(np.int64)
        step = {"topology": Topology(ranks), "max_tokens": 10**6, "cost": cost, "effort": 2000}
        plan = plan_step(lengths, **step)
        bound = max(cost(lengths).sum() / ranks, cost(lengths).max())
        assert plan.time_s <= plan_step(lengths, policy="equal_samples", **step).time_s
        gaps.append(plan.time_s / bound - 1)
    assert np.median(gaps) < 0.02
    assert max(gaps) < 0.10


def test_packed_capacity_is_hard():
    cost = CostModel(linear=1.0)
    plan = plan_step([7] * 8, topology=Topology(1), max_tokens=8, cost=cost)
    assert len(plan.micro_batches) == 8
    padded = plan_step([1, 1, 1, 1, 1, 20], topology=Topology(1), max_tokens=50, cost=cost, policy="padded")
    assert sorted(padded.micro_batches.tokens.tolist()) in ([5, 20], [4, 40])
    check_plan(padded, [1, 1, 1, 1, 1, 20], max_tokens=50, cost=cost)


def test_every_rank_runs_the_same_number_of_slots():
    cost = CostModel(linear=1.0, fixed=1.0)
    step = {"topology": Topology(2), "max_tokens": 10, "cost": cost, "sync": "micro_batch"}
    assert plan_step([9, 9, 9, 2], **step).num_slots == 2
    assert plan_step([9, 9, 9, 2], slots_multiple_of=4, **step).num_slots == 4
    dealt = plan_step([9, 2, 9, 2, 9, 2], policy="equal_samples", **step)
    assert dealt.num_slots == 3
    assert len(dealt.for_rank(1)) == 1


def test_degrees_follow_memory():
    cost = CostModel(linear=1e-4, fixed=0.01)
    lengths = np.array([3000, 4096, 5000, 9000, 33000])
    plan = plan_step(lengths, topology=Topology(16), max_tokens=4096, cost=cost, cp_degrees=(1, 2, 4, 8, 16))
    degree = {
        int(lengths[s]): int(d)
        for m, d in enumerate(plan.micro_batches.cp_degree)
        for s in plan.micro_batches.samples(m)
    }
    for length, least in ((3000, 1), (4096, 1), (5000, 2), (9000, 4), (33000, 16)):
        assert degree[length] >= least
    check_plan(plan, lengths, max_tokens=4096, cost=cost)


def test_others_work_while_a_long_sample_takes_a_group():
    cost = CostModel(linear=1e-4, quadratic=1e-9)
    lengths = np.array([9000] + [1000] * 20)
    plan = plan_step(lengths, topology=Topology(8), max_tokens=4096, cost=cost, cp_degrees=(1, 2, 4, 8))
    wide = np.flatnonzero(plan.micro_batches.cp_degree >= 4)
    assert any(0 in plan.micro_batches.samples(m) for m in wide)
    assert plan.gap < 0.2
    for policy in sorted(set(POLICIES) - {"balanced"}):
        other = plan_step(
            lengths, topology=Topology(8), max_tokens=4096, cost=cost, cp_degrees=(1, 2, 4, 8), policy=policy
        )
        assert np.all(other.micro_batches.cp_degree == 4)
        assert plan.time_s <= other.time_s


def test_waves_lose_little_where_arrival_order_loses_half():
    cost = CostModel(linear=1.8e-4, quadratic=1e-8)
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(7, 1.2, 2048), 16, 32768).astype(np.int64)
    step = {"topology": Topology(16), "max_tokens": 32768, "cost": cost, "sync": "micro_batch"}
    assert plan_step(lengths, **step).gap < 0.05
    assert plan_step(lengths, policy="equal_samples", **step).gap > 0.3


def test_ulysses_degrees_divide_heads():
    assert ulysses_degrees(32, 64) == (1, 2, 4, 8, 16, 32)
    assert ulysses_degrees(12, 8) == (1, 2, 3, 4, 6)
    assert ulysses_degrees(24, 24, num_key_value_heads=8) == (1, 2, 4, 8, 24)
    with pytest.raises(ValueError, match="positive multiple"):
        ulysses_degrees(12, 8, num_key_value_heads=5)


def test_groups_stay_inside_nodes():
    assert Topology(24, ranks_per_node=12).group_starts(8).tolist() == [0, 16]
    assert Topology(24, ranks_per_node=8).group_starts(16).tolist() == [0]
    assert Topology(7).group_starts(2).tolist() == [0, 2, 4]


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"balanced"}))
def test_a_policy_that_cannot_keep_an_option_says_so(policy):
    step = {"topology": Topology(2), "max_tokens": 10, "cost": CostModel(linear=1.0), "policy": policy}
    with pytest.raises(ValueError, match=r"needs [456] micro_batches a rank.*more than the 3"):
        plan_step([9] * 8, micro_batches=3, **step)
    with pytest.raises(ValueError, match=r"no degree of \(1, 2\) suits all samples.*min_length \{2: 5\}"):
        plan_step([16, 2], cp_degrees=(1, 2), min_length={2: 5}, **step)
    message = r"no degree of \(1,\) suits all samples.*max_tokens is from 5 to 10"
    with pytest.raises(ValueError, match=message):
        plan_step([9, 2], **{**step, "max_tokens": [10, 5]})
