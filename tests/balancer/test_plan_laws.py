"""Laws that hold for every policy, sync mode and shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import POLICIES, CostModel, Topology, plan_step

COST = CostModel(linear=2e-4, quadratic=1e-8, fixed=0.05)
lengths = st.lists(st.integers(1, 1000), max_size=60).map(lambda x: np.array(x, np.int64))
sync_modes = st.sampled_from(["step", "micro_batch"])


@pytest.mark.parametrize("policy", sorted(POLICIES))
@given(lengths=lengths, ranks=st.integers(1, 9), cap=st.integers(1000, 4000), sync=sync_modes)
def test_every_sample_once_and_no_micro_batch_over_its_cap(policy, lengths, ranks, cap, sync):
    plan = plan_step(lengths, topology=Topology(ranks), max_tokens=cap, cost=COST, sync=sync, policy=policy)
    batches = plan.micro_batches
    assert sorted(plan.order.tolist()) == list(range(lengths.size))
    for m in range(len(batches)):
        assert 0 < batches.tokens[m] <= cap * batches.cp_degree[m]
    assert plan.time_s >= plan.lower_bound_s
    assert plan.gap >= 0
    seen = [m for rank in range(ranks) for m in plan.for_rank(rank).tolist()]
    assert sorted(set(seen)) == list(range(len(batches)))


def test_an_empty_step_is_a_plan_without_work():
    plan = plan_step([], topology=Topology(3), max_tokens=10, cost=COST)
    assert len(plan.micro_batches) == 0
    assert (plan.time_s, plan.gap, plan.imbalance) == (0.0, 0.0, 1.0)
