"""`check_plan` runs the ranks' lists itself and holds the predicted times to that."""

import dataclasses

import pytest
from hypothesis import given

from balancer import CostModel, Topology, check_plan, plan_step
from tests.balancer.steps import steps


@given(step=steps())
def test_predicted_times_follow_the_lists_of_the_ranks(step):
    cost = step["cost"].for_topology(step["topology"])
    check_plan(
        plan_step(**step), step["table_or_lengths"], max_tokens=step["max_tokens"], cost=cost,
        cp_degrees=step["cp_degrees"], topology=step["topology"],
    )  # fmt: skip


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
@pytest.mark.parametrize("stages", [1, 4])
@pytest.mark.parametrize(
    ("change", "law"),
    [
        (lambda plan: {"time_s": plan.time_s * 1.01}, "time_s is when the last rank ends"),
        (lambda plan: {"rank_time_s": plan.rank_time_s * 0.99}, "rank_time_s sums"),
    ],
)
def test_another_time_is_named(change, law, sync, stages):
    lengths, cost = [500, 400, 300, 200, 100], CostModel(1e-3, 1e-7, 0.05)
    topology = Topology(2, pipeline_stages=stages)
    plan = plan_step(lengths, topology=topology, max_tokens=600, cost=cost, sync=sync)
    check_plan(plan, lengths, max_tokens=600, cost=cost, topology=topology)
    broken = dataclasses.replace(plan, **change(plan))
    with pytest.raises(ValueError, match=law):
        check_plan(broken, lengths, max_tokens=600, cost=cost, topology=topology)
    with pytest.raises(ValueError, match="2 of 3"):
        check_plan(plan, lengths, max_tokens=600, cost=cost, topology=Topology(3))
