"""The default against the plain ways to divide a step, over caps from barely enough to far too many."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import CostModel, Topology, plan_step

lengths_of_steps = st.lists(st.integers(1, 5000), min_size=1, max_size=60)


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
@pytest.mark.parametrize("policy", ["static_cp", "karmarkar_karp"])
@given(
    lengths=lengths_of_steps,
    ranks=st.integers(1, 12),
    spare=st.sampled_from([1, 3, 20, 10_000]),
    fixed=st.sampled_from([0.0, 1e-3, 1.0]),
    stages=st.sampled_from([1, 4]),
)
def test_the_default_is_never_slower_than_a_plain_one(policy, sync, lengths, ranks, spare, fixed, stages):
    arguments = {
        "topology": Topology(ranks=ranks, pipeline_stages=stages),
        "max_tokens": max(lengths) * spare,
        "cost": CostModel(linear=2e-4, quadratic=1e-8, fixed=fixed),
        "sync": sync,
    }
    best = plan_step(lengths, **arguments)
    assert best.time_s <= plan_step(lengths, policy=policy, **arguments).time_s


@pytest.mark.parametrize("cap", [2**15, 2**16, 2**18, 2**20, 2**24])
@pytest.mark.parametrize("cp_degrees", [(1,), (1, 2, 4, 8)])
def test_a_cap_above_a_ranks_share_leaves_no_rank_empty(cap, cp_degrees):
    lengths = np.random.default_rng(0).lognormal(7.0, 1.2, 512).clip(16, 2**15).astype(int)
    cost = CostModel(linear=2e-4, quadratic=1e-8, fixed=0.01)
    plan = plan_step(lengths, topology=Topology(8), max_tokens=cap, cost=cost, cp_degrees=cp_degrees)
    assert plan.gap < 0.005


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
@given(lengths=lengths_of_steps, spare=st.integers(0, 20))
def test_caps_too_small_for_the_padding_of_wide_groups_leave_the_narrow_ones(sync, lengths, spare):
    plan = plan_step(
        lengths,
        topology=Topology(ranks=8),
        max_tokens=max(lengths) + spare,
        cost=CostModel(linear=2e-4, quadratic=1e-8, fixed=1e-3),
        cp_degrees=(1, 2, 4, 8),
        sync=sync,
    )
    assert sorted(plan.order.tolist()) == list(range(len(lengths)))
