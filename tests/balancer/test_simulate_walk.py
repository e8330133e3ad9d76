"""Laws of the walk: a step's plan, operation by operation."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from balancer import CostModel, Topology, plan_step
from balancer.plan import MicroBatches, StepPlan
from balancer.simulation import walk
from balancer.simulation.reference import stage_order, walk_time
from balancer.simulation.walk import paces
from tests.balancer.steps import plan_or_refusal, steps

seconds = st.floats(0.01, 10)
pace_numbers = st.sampled_from([0.5, 1.0, 1.0, 1.7])


def queue(*costs, ranks=1, sync="step"):
    """The plan in which every rank runs micro-batches of these costs."""
    slots, count = len(costs), len(costs) * ranks
    return StepPlan(
        micro_batches=MicroBatches(
            first_rank=np.tile(np.arange(ranks, dtype=np.int32), slots),
            cp_degree=np.ones(count, np.int32),
            slot=np.repeat(np.arange(slots, dtype=np.int32), ranks),
            tokens=np.full(count, 10),
            cost_s=np.repeat(np.array(costs, np.float64), ranks),
            order=np.arange(count),
            offsets=np.arange(count + 1),
        ),
        ranks=ranks,
        sync=sync,
        num_slots=slots,
        rank_time_s=np.full(ranks, float(sum(costs))),
        time_s=0.0,
        lower_bound_s=0.0,
    )


def formula(costs, stages):
    return sum(costs) + (stages - 1) * max(costs)


def even(ranks, stages):
    return np.ones((ranks, stages))


@given(
    step=steps(most_ranks=5, most_samples=20, most_degrees=3),
    stages=st.integers(1, 4),
    forward_share=st.sampled_from([0.0, 1 / 3, 0.5, 1.0]),
    data=st.data(),
)
def test_the_kernel_equals_its_slow_twin(step, stages, forward_share, data):
    plan = plan_or_refusal("", **step)
    assume(plan is not None)
    numbers = data.draw(st.lists(pace_numbers, min_size=plan.ranks * stages, max_size=plan.ranks * stages))
    pace = np.array(numbers).reshape(plan.ranks, stages)
    ran = walk(plan, pace, idle_s=0.02, forward_share=forward_share)
    slow = walk_time(plan, pace, idle_s=0.02, forward_share=forward_share)
    assert ran.time_s == pytest.approx(slow, rel=1e-12)


@given(step=steps())
def test_without_pipeline_and_noise_a_plan_takes_what_it_predicts(step):
    topology = step["topology"]
    step["topology"] = Topology(topology.ranks, topology.ranks_per_node, topology.speed)
    plan = plan_or_refusal("", **step)
    assume(plan is not None)
    slowness = np.ones(plan.ranks) if topology.speed is None else 1 / topology.speed
    ran = walk(plan, paces(slowness, None, 1), idle_s=step["cost"].fixed_s())
    # the planner counts slowness in 1/65,536 parts
    assert ran.time_s == pytest.approx(plan.time_s, rel=4e-5, abs=1e-7)


@given(costs=st.lists(seconds, min_size=1, max_size=9), stages=st.integers(1, 5), data=st.data())
def test_no_pipeline_is_faster_than_any_stage_or_any_micro_batch(costs, stages, data):
    multipliers = np.array(data.draw(st.lists(pace_numbers, min_size=stages, max_size=stages)))
    share = data.draw(st.sampled_from([0.25, 1 / 3, 0.6]))
    time_s = walk(queue(*costs), multipliers[None, :], forward_share=share).time_s
    for s in range(stages):
        fill = share * costs[0] * multipliers[:s].sum()
        drain = (1 - share) * costs[-1] * multipliers[:s].sum()
        assert time_s >= (fill + sum(costs) * multipliers[s] + drain) * (1 - 1e-12)
    assert time_s >= max(costs) * multipliers.sum() * (1 - 1e-12)


@given(cost=seconds, slots=st.integers(1, 9), stages=st.integers(1, 6), ranks=st.integers(1, 3))
def test_equal_micro_batches_follow_the_formula(cost, slots, stages, ranks):
    for sync in ("step", "micro_batch"):
        ran = walk(queue(*[cost] * slots, ranks=ranks, sync=sync), even(ranks, stages))
        assert ran.time_s == pytest.approx((slots + stages - 1) * cost)
        assert ran.busy_s == pytest.approx(np.full((ranks, stages), slots * cost))


def test_unequal_micro_batches_lie_on_both_sides_of_the_formula():
    below, above = [1.0, 10.0], [0.01, 3.0, 0.01, 3.0]
    assert walk(queue(*below), even(1, 2)).time_s == pytest.approx(61 / 3)
    assert walk(queue(*below), even(1, 2)).time_s < formula(below, 2)
    assert walk(queue(*above), even(1, 3)).time_s > 1.2 * formula(above, 3)


def test_a_slow_stage_sets_the_beat():
    ran = walk(queue(*[3.0] * 10), paces(np.ones(1), (1.0, 2.0, 1.0), 3))
    # the middle stage works 60 s, starts after 1, waits for the last stage's first backward from 5 to 6, and
    # is followed by the first stage's last backward of 2
    assert ran.time_s == pytest.approx(1 + 60 + 1 + 2)


@given(costs=st.lists(seconds, min_size=1, max_size=8), stages=st.integers(1, 5))
def test_a_film_of_the_step_run_backwards_takes_as_long(costs, stages):
    """Backwards become forwards, the last micro-batch comes first: 1F1B is its own mirror image."""
    onward = walk(queue(*costs), even(1, stages), forward_share=0.3).time_s
    mirrored = walk(queue(*costs[::-1]), even(1, stages), forward_share=0.7).time_s
    assert onward == pytest.approx(mirrored)


@given(step=steps(most_ranks=6, most_samples=20), stages=st.integers(1, 3), factor=st.floats(0.1, 10))
def test_time_scales_with_the_pace_and_never_falls_when_a_gpu_slows(step, stages, factor):
    plan = plan_or_refusal("", **step)
    assume(plan is not None)
    pace = even(plan.ranks, stages)
    nominal = walk(plan, pace, idle_s=0.01)
    scaled = walk(plan, pace * factor, idle_s=0.01)
    assert scaled.time_s == pytest.approx(factor * nominal.time_s)
    assert scaled.busy_s == pytest.approx(factor * nominal.busy_s)
    slower = pace.copy()
    slower[plan.ranks // 2, stages - 1] = 2.5
    assert walk(plan, slower, idle_s=0.01).time_s >= nominal.time_s * (1 - 1e-12)


@given(step=steps(most_degrees=1), data=st.data())
def test_names_of_ranks_do_not_matter(step, data):
    step["cp_degrees"] = (1,)
    plan = plan_or_refusal("", **step)
    assume(plan is not None and len(plan.micro_batches))
    pace = np.array(data.draw(st.lists(pace_numbers, min_size=2 * plan.ranks, max_size=2 * plan.ranks)))
    pace = pace.reshape(plan.ranks, 2)
    new_name = np.array(data.draw(st.permutations(range(plan.ranks))))
    batches = plan.micro_batches
    renamed = StepPlan(
        micro_batches=MicroBatches(
            first_rank=new_name[batches.first_rank].astype(np.int32),
            **{c: batches[c] for c in ("cp_degree", "slot", "tokens", "cost_s", "order", "offsets")},
        ),
        ranks=plan.ranks, sync=plan.sync, num_slots=plan.num_slots, rank_time_s=plan.rank_time_s,
        time_s=plan.time_s, lower_bound_s=plan.lower_bound_s,
    )  # fmt: skip
    shuffled = np.empty_like(pace)
    shuffled[new_name] = pace
    a, b = walk(plan, pace, idle_s=0.1), walk(renamed, shuffled, idle_s=0.1)
    assert a.time_s == pytest.approx(b.time_s)
    assert b.busy_s[new_name] == pytest.approx(a.busy_s)
    assert b.held_tokens[new_name] == pytest.approx(a.held_tokens)


@given(slots=st.integers(1, 9), stages=st.integers(1, 6))
def test_the_first_stage_holds_one_micro_batch_for_each_stage(slots, stages):
    held = walk(queue(*[1.0] * slots), even(1, stages)).held_tokens
    assert held.tolist() == [10 * min(slots, stages)]


def test_stages_alternate_after_their_warm_up():
    assert stage_order(2, 3, 2) == [("F", 0), ("B", 0), ("F", 1), ("B", 1)]
    assert stage_order(1, 3, 3) == [("F", 0), ("F", 1), ("B", 0), ("F", 2), ("B", 1), ("B", 2)]


def test_a_group_goes_at_its_slowest_members_pace_and_the_fast_one_waits():
    plan = plan_step(
        np.array([80]), topology=Topology(2), max_tokens=40, cost=CostModel(1.0), cp_degrees=(2,)
    )
    ran = walk(plan, np.array([[1.0], [1.5]]))
    assert ran.time_s == pytest.approx(60)
    assert ran.busy_s[:, 0] == pytest.approx([40, 60])


def test_an_empty_step_takes_no_time():
    empty = plan_step(np.zeros(0, int), topology=Topology(2), max_tokens=8, cost=CostModel(1.0))
    assert walk(empty, even(2, 3)).time_s == 0


@pytest.mark.parametrize(
    ("pace", "share", "what"),
    [
        (np.ones((2, 1)), 0.3, r"\[1 ranks, stages\], got shape \(2, 1\)"),
        (np.ones(1), 0.3, "pace"),
        (np.zeros((1, 1)), 0.3, "finite positive"),
        (np.ones((1, 1)), 1.5, "forward_share must lie in 0..1, got 1.5"),
    ],
)
def test_bad_arguments_get_a_sentence(pace, share, what):
    with pytest.raises(ValueError, match=what):
        walk(queue(1.0), pace, forward_share=share)
    with pytest.raises(ValueError, match="must hold 3 finite positive numbers"):
        paces(np.ones(1), (1.0, 2.0), 3)
