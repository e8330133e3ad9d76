"""Laws that hold for every policy, sync mode, shape and option."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import POLICIES, CostModel, Topology, check_plan, plan_step, reference
from tests.balancer.steps import plan_or_refusal, steps

COST = CostModel(linear=2e-4, quadratic=1e-8, fixed=0.05)
lengths = st.lists(st.integers(1, 1000), max_size=60).map(lambda x: np.array(x, np.int64))
sync_modes = st.sampled_from(["step", "micro_batch"])


@given(step=steps())
def test_every_option_gives_a_lawful_plan(step):
    check(plan_step(**step), step)


def check(plan, step):
    batches, ranks = plan.micro_batches, step["topology"].ranks
    lengths, caps = step["table_or_lengths"], np.broadcast_to(step["max_tokens"], (ranks,))
    cost = step["cost"].for_topology(step["topology"])
    assert sorted(plan.order.tolist()) == list(range(lengths.size))
    assert np.all(np.diff(plan.offsets) > 0)
    assert set(batches.cp_degree.tolist()) <= set(step["cp_degrees"])
    assert np.all(batches.first_rank % batches.cp_degree == 0)
    for m, degree in enumerate(batches.cp_degree.tolist()):
        n = lengths[batches.samples(m)]
        if plan.policy == "padded":
            n = np.full_like(n, n.max())
        first = batches.first_rank[m]
        pieces = 2 * degree if degree > 1 else 1
        assert batches.tokens[m] == (-(-n // pieces) * pieces).sum()
        assert batches.tokens[m] <= degree * caps[first : first + degree].min()
        expected = cost.fixed_s(degree) + cost(n, degree).sum()
        assert batches.cost_s[m] == pytest.approx(expected, abs=1e-8 * (1 + n.size))
    seen = set()
    for rank in range(ranks):
        mine = plan.for_rank(rank)
        assert np.all(np.diff(batches.slot[mine]) > 0)
        seen |= set(mine.tolist())
    assert seen == set(range(len(batches)))
    assert plan.num_slots == batches.slot.max(initial=-1) + 1
    assert plan.time_s >= plan.lower_bound_s
    assert plan.gap >= 0
    assert plan.time_s >= plan.rank_time_s.max() - 1e-9 or plan.sync == "micro_batch"
    check_plan(plan, lengths, max_tokens=caps, cost=cost, cp_degrees=step["cp_degrees"])


@given(step=steps())
def test_ranks_that_work_through_their_queues_never_wait_for_ever(step):
    plan = plan_step(**step)
    batches = plan.micro_batches
    queues = [plan.for_rank(rank).tolist() for rank in range(plan.ranks)]
    done = reference.run_queues(batches.first_rank.tolist(), batches.cp_degree.tolist(), queues)
    assert sorted(done) == list(range(len(batches)))


def test_the_queue_simulation_sees_a_deadlock():
    assert reference.run_queues([0, 1, 2], [2, 2, 2], [[0], [1, 0], [2, 1], [2]]) == [2, 1, 0]
    assert reference.run_queues([0, 1, 0], [2, 2, 3], [[0, 2], [1, 0, 2], [2, 1]]) == []


@given(step=steps(), micro_batches=st.integers(1, 60), multiple=st.integers(1, 4))
def test_a_fixed_number_of_slots_is_kept(step, micro_batches, multiple):
    micro_batches *= multiple
    plan = plan_or_refusal("micro_batches", **step, micro_batches=micro_batches, slots_multiple_of=multiple)
    if plan is None:
        return
    assert plan.num_slots == micro_batches
    assert plan.micro_batches.slot.max(initial=0) < micro_batches
    assert plan.time_s >= plan.lower_bound_s


@given(step=steps(), multiple=st.integers(2, 5))
def test_slots_come_in_multiples(step, multiple):
    plan = plan_step(**step, slots_multiple_of=multiple)
    assert plan.num_slots % multiple == 0
    assert plan.time_s >= plan.lower_bound_s


@given(step=steps(most_samples=20), data=st.data())
def test_short_samples_stay_off_degrees_that_are_too_wide_for_them(step, data):
    named = data.draw(st.sets(st.sampled_from(step["cp_degrees"])))
    least = {d: data.draw(st.integers(1, 1500)) for d in sorted(named)}
    plan = plan_or_refusal("min_length", **step, min_length=least)
    if plan is None:
        return
    batches = plan.micro_batches
    for m, degree in enumerate(batches.cp_degree.tolist()):
        assert step["table_or_lengths"][batches.samples(m)].min() >= least.get(degree, 1)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@given(lengths=lengths, ranks=st.integers(1, 9), cap=st.integers(1000, 4000), sync=sync_modes)
def test_every_sample_once_and_no_micro_batch_over_its_cap(policy, lengths, ranks, cap, sync):
    step = {
        "table_or_lengths": lengths,
        "topology": Topology(ranks),
        "max_tokens": cap,
        "cost": COST,
        "sync": sync,
        "cp_degrees": (1,),
    }
    check(plan_step(policy=policy, **step), step)


def test_an_empty_step_is_a_plan_without_work():
    plan = plan_step([], topology=Topology(3), max_tokens=10, cost=COST)
    assert len(plan.micro_batches) == 0
    assert (plan.time_s, plan.gap, plan.imbalance) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("rank", [-1, 4, 99])
def test_a_rank_outside_of_the_plan_is_refused_and_not_taken_for_an_idle_one(rank):
    plan = plan_step([5, 3], topology=Topology(ranks=4), max_tokens=8, cost=CostModel.generic())
    with pytest.raises(ValueError, match=r"rank must lie in 0\.\.3"):
        plan.for_rank(rank)
