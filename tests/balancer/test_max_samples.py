"""A cap on the samples of a micro-batch, beside the cap on its tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import POLICIES, CostModel, Topology, check_plan, plan_step
from balancer.phases import Phase, plan_phases
from packing.table import SampleTable
from tests.balancer.steps import steps
from tests.balancer.test_plan_laws import check

COST = CostModel(linear=2e-4, quadratic=1e-8, fixed=0.05)


def most_samples(plan):
    return int(np.diff(plan.offsets).max(initial=0))


@given(step=steps(), max_samples=st.integers(1, 8))
def test_no_micro_batch_has_more_samples_and_the_plan_stays_lawful(step, max_samples):
    plan = plan_step(**step, max_samples=max_samples)
    assert most_samples(plan) <= max_samples
    check(plan, step)


@given(step=steps())
def test_a_limit_that_nothing_reaches_changes_nothing(step):
    plan = plan_step(**step)
    limited = plan_step(**step, max_samples=max(most_samples(plan), 1))
    assert limited.digest() == plan.digest()


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("sync", ["step", "micro_batch"])
def test_every_policy_keeps_it(policy, sync):
    lengths = np.random.default_rng(3).integers(1, 60, 200)
    topology = Topology(ranks=4)
    plan = plan_step(
        lengths, topology=topology, max_tokens=512, cost=COST, policy=policy, sync=sync, max_samples=5
    )
    assert most_samples(plan) <= 5
    check_plan(plan, lengths, max_tokens=512)


def test_u26_ten_thousand_samples_of_one_token_stay_below_256_a_pack():
    lengths = np.ones(10_000, np.int64)
    plan = plan_step(lengths, topology=Topology(ranks=2), max_tokens=8192, cost=COST, max_samples=256)
    assert most_samples(plan) == 250  # 5,000 on each rank, in 20 parts
    assert len(plan.micro_batches) == 40


def test_parts_of_a_micro_batch_are_alike_in_tokens():
    lengths = np.arange(1, 101)
    plan = plan_step(lengths, topology=Topology(ranks=1), max_tokens=6000, cost=COST, max_samples=25)
    assert np.diff(plan.offsets).tolist() == [25] * 4
    assert np.ptp(plan.micro_batches.tokens) <= 4


def test_a_rank_keeps_its_samples_when_ranks_meet_once_a_step():
    lengths = np.random.default_rng(1).integers(1, 50, 300)
    arguments = {"topology": Topology(ranks=4), "max_tokens": 4096, "cost": COST}
    free, limited = plan_step(lengths, **arguments), plan_step(lengths, **arguments, max_samples=10)
    for rank in range(4):
        of_rank = [
            sorted(np.concatenate([plan.micro_batches.samples(m) for m in plan.for_rank(rank)]).tolist())
            for plan in (free, limited)
        ]
        assert of_rank[0] == of_rank[1]


def test_too_few_micro_batches_for_the_samples_are_refused():
    with pytest.raises(ValueError, match="with max_samples=10 needs 5 micro_batches"):
        plan_step(
            np.ones(50, np.int64),
            topology=Topology(ranks=1),
            max_tokens=64,
            cost=COST,
            micro_batches=2,
            max_samples=10,
        )


@pytest.mark.parametrize("bad", [0, -1, 1.5, True])
def test_a_limit_that_is_no_count_is_refused(bad):
    with pytest.raises(ValueError, match="max_samples must be"):
        plan_step([1], topology=Topology(ranks=1), max_tokens=4, cost=COST, max_samples=bad)


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
def test_plans_with_encoders_keep_it(sync):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 40, 64)
    table = SampleTable(
        num_tokens=lengths,
        source=np.zeros(64, np.int32),
        row=np.arange(64),
        start=np.zeros(64, np.int64),
        num_loss_tokens=lengths - 1,
        phases={"vision": rng.integers(0, 3, 64) * 100},
    )
    plan = plan_phases(
        table,
        topology=Topology(ranks=2),
        max_tokens=2048,
        cost=COST,
        phases={"vision": Phase(cost=CostModel(linear=1e-4), max_units=1000)},
        sync=sync,
        max_samples=7,
    )
    assert most_samples(plan.language) <= 7
    assert sorted(plan.language.order.tolist()) == list(range(64))
    for m in range(len(plan.encoders["vision"].micro_batches)):
        assert plan.encoders["vision"].micro_batches.tokens[m] <= 1000
