"""The lower bound against everything that could beat it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer import CostModel, Topology, plan_step
from balancer.bounds import lower_bound_ns
from balancer.cost import Communication
from balancer.planning.problem import make_problem
from balancer.reference import best_time_ns
from tests.balancer.milp import least_time_s
from tests.balancer.steps import plan_or_refusal, steps


def optimum_s(step, **options):
    best = best_time_ns(
        step["table_or_lengths"],
        topology=step["topology"],
        max_tokens=np.broadcast_to(step["max_tokens"], (step["topology"].ranks,)),
        cost=step["cost"].for_topology(step["topology"]),
        cp_degrees=step["cp_degrees"],
        sync=step["sync"],
        **options,
    )
    return None if best is None else float(best) * 1e-9


def proven_s(step, micro_batches=None):
    """The bound itself; a plan's is never above the plan's own time."""
    return lower_bound_ns(make_problem(**step, micro_batches=micro_batches, seed=0)) * 1e-9


@settings(max_examples=200)
@given(step=steps(most_ranks=3, most_samples=3, most_degrees=2))
def test_no_plan_of_a_tiny_step_beats_the_bound(step):
    if len(step["table_or_lengths"]) == 0:
        return
    plan, best = plan_step(**step), optimum_s(step)
    assert proven_s(step) <= best * (1 + 1e-9) + 1e-9
    # Slowness is counted in 2**-16 parts, rounded up.
    assert plan.time_s >= best * (1 - 1e-9) - 1e-9


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
def test_plans_of_tiny_steps_are_near_the_best(sync):
    rng = np.random.default_rng(0)
    over = []
    for _ in range(60):
        step = {
            "table_or_lengths": rng.integers(1, 800, rng.integers(1, 4)),
            "topology": Topology(int(rng.integers(2, 4))),
            "max_tokens": 800,
            "cost": CostModel(linear=2e-4, quadratic=1e-6, fixed=float(rng.choice([0.0, 0.02]))),
            "cp_degrees": (1, 2),
            "sync": sync,
        }
        over.append(plan_step(**step).time_s / optimum_s(step) - 1)
    assert np.median(over) < 1e-6
    assert max(over) < 0.03


@settings(max_examples=80)
@given(step=steps(most_ranks=2, most_samples=3, most_degrees=2), micro_batches=st.integers(1, 3))
def test_the_bound_holds_for_a_fixed_number_of_slots(step, micro_batches):
    if len(step["table_or_lengths"]) == 0:
        return
    best = optimum_s(step, micro_batches=micro_batches)
    plan = plan_or_refusal("micro_batches", **step, micro_batches=micro_batches)
    if plan is None:
        return
    assert proven_s(step, micro_batches=micro_batches) <= best * (1 + 1e-9) + 1e-9
    assert plan.time_s >= best * (1 - 1e-9) - 1e-9


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
@pytest.mark.parametrize("seed", range(6))
def test_plans_stay_near_the_optimum_of_an_integer_program(sync, seed):
    rng = np.random.default_rng(seed)
    lengths = np.clip(np.exp(rng.normal(5.8, 1.0, 7)), 10, 3900).astype(np.int64)
    cost = CostModel(linear=2e-4, quadratic=1e-7 * (seed % 3), fixed=0.02 * (seed % 2))
    step = {
        "topology": Topology(4),
        "max_tokens": 1000,
        "cost": cost,
        "cp_degrees": (1, 2, 4),
        "sync": sync,
    }
    best = least_time_s(lengths, micro_batches=3, **step)
    plan = plan_step(lengths, **step)
    assert plan.lower_bound_s <= best * (1 + 1e-6)
    assert plan.time_s <= best * 1.05
    if plan.num_slots <= 3:
        assert plan.time_s >= best * (1 - 1e-3)


def test_the_bound_is_exact_where_it_can_be_seen():
    cost = CostModel(linear=1e-3, fixed=0.1)
    # 4 micro-batches of 100 tokens on 2 ranks: 2 * (0.1 + 0.1) each.
    plan = plan_step([100] * 4, topology=Topology(2), max_tokens=100, cost=cost)
    assert plan.lower_bound_s == pytest.approx(0.4)
    assert plan.time_s == pytest.approx(0.4)
    # One sample that only two ranks together can hold.
    plan = plan_step([150], topology=Topology(2), max_tokens=100, cost=cost, cp_degrees=(1, 2))
    assert plan.time_s == plan.lower_bound_s == pytest.approx(0.1 + 0.075)
    # Three stages: every micro-batch passes all of them, the largest one twice more.
    staged = Topology(1, pipeline_stages=3)
    plan = plan_step([100], topology=staged, max_tokens=100, cost=cost)
    assert plan.time_s == plan.lower_bound_s == pytest.approx(3 * 0.2)


def test_a_slow_rank_gets_work_in_proportion():
    cost = CostModel(linear=1e-3)
    topology = Topology(3, speed=np.array([1.0, 1.0, 0.5]))
    plan = plan_step([10] * 500, topology=topology, max_tokens=10_000, cost=cost)
    tokens = np.zeros(3)
    np.add.at(tokens, plan.micro_batches.first_rank, plan.micro_batches.tokens)
    assert tokens.tolist() == pytest.approx([2000, 2000, 1000])
    assert plan.gap < 1e-6


@settings(max_examples=60)
@given(lengths=st.lists(st.integers(30, 190), min_size=1, max_size=30), megabytes=st.integers(0, 40))
def test_no_plan_beats_what_samples_are_charged_for_the_groups_they_fill_badly(lengths, megabytes):
    link = Communication(bytes_per_token=megabytes * 1e3, intra_node=1e9, inter_node=1e9)
    cost = CostModel(linear=2e-4, fixed=0.05, communication=link)
    step = {"topology": Topology(4), "max_tokens": 100, "cost": cost, "cp_degrees": (1, 2, 4), "sync": "step"}
    plan = plan_step(lengths, **step)
    assert proven_s({"table_or_lengths": lengths, **step}) <= plan.time_s * (1 + 1e-9)


def test_a_rank_that_holds_more_than_any_two_neighbours_keeps_its_samples():
    lengths = [326, 211, 317, 163, 225, 118, 190, 283, 271, 45, 101, 157, 60, 180, 288, 315, 97, 119, 87]
    cost = CostModel(linear=2e-4, fixed=0.05)
    caps = [313, 109, 86, 194]
    plan = plan_step(lengths, topology=Topology(4), max_tokens=caps, cost=cost, cp_degrees=(1, 2, 4))
    batches = plan.micro_batches
    assert sorted(batches.order.tolist()) == list(range(len(lengths)))
    for first, degree, tokens in zip(batches.first_rank, batches.cp_degree, batches.tokens, strict=True):
        assert tokens <= degree * min(caps[first : first + degree])
