"""One rank's plan is written down directly: it is what the general way makes of the same layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import CostModel, Topology
from balancer.bounds import lower_bound_ns
from balancer.planning import alone
from balancer.planning.layout import make_plan
from balancer.planning.problem import make_problem
from balancer.policies import POLICIES


def problem_of(lengths, *, cost=None, **options):
    arguments = {"sync": "step", "micro_batches": None, **options}
    return make_problem(
        lengths,
        topology=options.pop("topology", Topology(1)),
        max_tokens=64,
        cost=cost or CostModel(linear=1e-6, quadratic=1e-9, fixed=1e-3),
        cp_degrees=(1,),
        seed=0,
        **{name: value for name, value in arguments.items() if name != "topology"},
    )


@pytest.mark.parametrize("policy", ["balanced", "equal_tokens", "equal_samples", "karmarkar_karp"])
@given(
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=40),
    sync=st.sampled_from(["step", "micro_batch"]),
    slots=st.sampled_from([{}, {"slots_multiple_of": 3}, {"micro_batches": 50}]),
    fixed=st.sampled_from([0.0, 1e-3]),
)
def test_it_equals_the_plan_that_is_made_of_any_ranks(policy, lengths, sync, slots, fixed):
    cost = CostModel(linear=1e-6, quadratic=1e-9, fixed=fixed)
    problem = problem_of(lengths, cost=cost, sync=sync, **slots)
    layout = POLICIES[policy](problem)
    expected = make_plan(problem, layout, lower_bound_ns=lower_bound_ns(problem), policy=policy)
    found = alone.make_plan(problem, layout, policy)
    if layout.slot is not None:  # the search's, where first fit takes a micro-batch more than the bound
        assert found is None
        return
    assert found is not None
    assert found.to_bytes() == expected.to_bytes()
    for name in expected.micro_batches.__slots__:
        column, other = expected.micro_batches[name], found.micro_batches[name]
        assert column.dtype == other.dtype
        np.testing.assert_array_equal(column, other)
    assert found.rank_time_s.tolist() == expected.rank_time_s.tolist()
    assert (found.time_s, found.lower_bound_s) == (expected.time_s, expected.lower_bound_s)


def test_layouts_that_take_more_than_sums_are_left_to_the_general_way():
    in_slots = problem_of([28, 37, 37], sync="micro_batch")
    assert alone.make_plan(in_slots, POLICIES["balanced"](in_slots), "balanced") is None
    padded = problem_of([3, 50, 20])
    assert alone.make_plan(padded, POLICIES["padded"](padded), "padded") is None
    two = problem_of([3, 50, 20], topology=Topology(2))
    assert alone.make_plan(two, POLICIES["balanced"](two), "balanced") is None
    slow = problem_of([3, 50, 20], topology=Topology(1, speed=[0.5]))
    assert alone.make_plan(slow, POLICIES["balanced"](slow), "balanced") is None
