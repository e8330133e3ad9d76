"""Layouts in slots: what is left out cannot be shorter, and kernels count time as the plan does."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from balancer import CostModel, Topology
from balancer.planning import waves
from balancer.planning.layout import objective_ns
from balancer.planning.longest import TooLong
from balancer.planning.problem import make_problem, that_holds
from tests.balancer.steps import steps

COST = CostModel(1e-4, 1e-9, 0.05)


def problem_of(lengths, sync="micro_batch", **step):
    given = {"max_tokens": 8192, "cost": COST, "cp_degrees": (1, 2, 4), "micro_batches": None, "seed": 0}
    return make_problem(lengths, sync=sync, **{**given, **step})


def tailed(samples, seed, middle=2500.0):
    lengths = np.random.default_rng(seed).lognormal(np.log(middle), 1.3, samples)
    return np.clip(lengths, 16, 24_000).astype(np.int64)


@given(step=steps(), slots=st.integers(1, 12), height=st.sampled_from([0.5, 1.0, 2.0, 64.0]), flags=st.data())
@settings(max_examples=100)
def test_a_layouts_time_is_that_of_its_plan(step, slots, height, flags):
    lengths = step.pop("table_or_lengths")
    assume(lengths.size)
    try:
        problem = make_problem(lengths, **step, micro_batches=None, seed=0)
    except ValueError:
        assume(False)
    part = that_holds(problem, problem.cp_degrees)
    assume(part is not None)
    ground = waves.Ground.of(part)
    here = waves.Slots(ground=ground, slots=slots)
    way = waves.Way(height=height, riders=flags.draw(st.booleans()), tight=flags.draw(st.booleans()))
    built = here.build(way, here.ranges(height))
    assume(built is not None)
    layout = ground.layout(built)
    assert built.time_ns == objective_ns(part, layout)
    assert sorted(layout.order.tolist()) == list(range(len(part)))


@pytest.mark.parametrize("stages", [1, 4])
@pytest.mark.parametrize("sync", ["step", "micro_batch"])
def test_what_is_not_built_could_not_be_shorter(sync, stages, monkeypatch):
    for seed in range(6):
        problem = problem_of(tailed(160, seed), sync, topology=Topology(16, pipeline_stages=stages))
        spared = objective_ns(problem, waves.divide(problem))
        with monkeypatch.context() as all_ways:
            all_ways.setattr(waves.Ground, "may_be_shorter", lambda *_: True)
            all_ways.setattr(waves.Ground, "room_within", lambda *_: np.inf)
            every = objective_ns(problem, waves.divide(problem))
        assert spared <= every


def test_numbers_of_slots_that_leave_too_little_time_are_not_built(monkeypatch):
    built = []
    build = waves.Slots.build
    monkeypatch.setattr(
        waves.Slots, "build", lambda self, *way: built.append(self.slots) or build(self, *way)
    )
    problem = problem_of(tailed(160, 0), topology=Topology(16))
    layout = waves.divide(problem)
    assert built
    built.clear()
    assert waves.divide(problem, below_ns=objective_ns(problem, layout) // 2) is None
    assert not built


def test_where_times_might_pass_64_bits_they_are_counted_with_care():
    problem = problem_of(tailed(40, 0), topology=Topology(4), cost=CostModel(linear=3e3))
    ground = waves.Ground.of(problem)
    here = waves.Slots(ground=ground, slots=40)
    built = here.build(waves.NARROW, here.ranges(64.0))
    assert not ground.safe
    assert built.time_ns == objective_ns(problem, ground.layout(built))


def test_a_candidate_that_takes_too_long_is_left_out(monkeypatch):
    def refuse(*_):
        raise TooLong

    problem = problem_of(tailed(40, 0), topology=Topology(4), cost=CostModel(linear=3e3))
    monkeypatch.setattr(waves, "objective_ns", refuse)
    assert waves.divide(problem) is None
