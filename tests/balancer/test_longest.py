"""Costs in another unit than seconds: either a right plan or a refusal, never times that ran over 64 bits."""

from __future__ import annotations

import numpy as np
import pytest

from balancer import POLICIES, CostModel, Topology, plan_step
from balancer.checking import check_plan


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("sync", ["step", "micro_batch"])
def test_times_are_right_or_refused_up_to_centuries(policy, sync):
    """From seconds to 10 million years a step, on slow ranks and through stages."""
    rng = np.random.default_rng(3)
    refused, planned = [], 0
    for years in (1e-8, 1e-3, 1.0, 30.0, 300.0, 3e4, 1e7):
        lengths = rng.integers(1, 9, 40)
        cost = CostModel(linear=years * 3.15e7 / lengths.sum(), fixed=1e-3)
        speed = 10.0 ** rng.uniform(-2, 1, 4)
        topology = Topology(ranks=4, speed=speed, pipeline_stages=2)
        arguments = {"max_tokens": 64, "cost": cost, "cp_degrees": (1, 2), "topology": topology}
        try:
            plan = plan_step(lengths, sync=sync, policy=policy, **arguments)
        except (ValueError, OverflowError) as error:
            refused.append(str(error))
            continue
        check_plan(plan, lengths, **arguments)
        planned += 1
    assert planned >= 3
    assert len(refused) >= 2
    assert all("check their unit" in told for told in refused)
