"""One rank is planned by first fit alone, wherever that is proven to be the best."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import CostModel, Topology, check_plan, plan_step
from balancer.planning import alone
from balancer.planning.ladder import build_ladder
from balancer.planning.problem import make_problem

steps = st.fixed_dictionaries(
    {
        "table_or_lengths": st.lists(st.integers(1, 100), min_size=1, max_size=40),
        "max_tokens": st.integers(100, 400),
        "cost": st.sampled_from([0.0, 0.5, 100.0]).map(lambda fixed: CostModel(1e-3, 1e-5, fixed)),
        "sync": st.sampled_from(["step", "micro_batch"]),
        "micro_batches": st.sampled_from([None, 12, 30]),
        "slots_multiple_of": st.sampled_from([1, 2, 3]),
    }
)


@given(step=steps)
def test_the_bound_of_one_rank_is_that_of_many(step):
    problem = make_problem(topology=Topology(1), cp_degrees=(1,), seed=0, **step)
    assert alone.bound_ns(problem) == build_ladder(problem).lower_bound_ns


@given(step=steps)
def test_a_plan_of_one_rank_by_first_fit_takes_the_bound(step):
    arguments = {**step, "topology": Topology(1)}
    problem = make_problem(cp_degrees=(1,), seed=0, **arguments)
    layout = alone.divide(problem)
    if layout is None:
        return
    plan = plan_step(**arguments)
    assert plan.gap == 0
    assert np.array_equal(plan.order, problem.rows[layout.order])
    check_plan(plan, step["table_or_lengths"], max_tokens=step["max_tokens"], cost=step["cost"])


def test_one_rank_is_searched_where_first_fit_opens_one_micro_batch_too_many():
    lengths = [33, 30, 27, 26, 21, 18, 16, 9]  # 33 + 27, 30 + 21 + 9, 26 + 18 + 16; first fit: 30 + 26
    problem = make_problem(
        lengths, topology=Topology(1), max_tokens=60, cost=CostModel(1e-3, fixed=1.0), cp_degrees=(1,),
        sync="step", micro_batches=None, seed=0,
    )  # fmt: skip
    assert alone.divide(problem) is None
    plan = plan_step(lengths, topology=Topology(1), max_tokens=60, cost=CostModel(1e-3, fixed=1.0))
    assert plan.gap == 0


@pytest.mark.parametrize(
    "topology", [Topology(2), Topology(1, pipeline_stages=2), Topology(1, speed=np.array([0.5]))]
)
def test_others_than_one_nominal_rank_take_the_long_way(topology):
    problem = make_problem(
        [5, 3], topology=topology, max_tokens=8, cost=CostModel(1.0), cp_degrees=(1,), sync="step",
        micro_batches=None, seed=0,
    )  # fmt: skip
    assert alone.bound_ns(problem) is None
    assert alone.divide(problem) is None
