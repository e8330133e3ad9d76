"""Lengths, cost and topology in, step plans out. Pure except `balancer.runtime`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from balancer.checking import Admission, admission, check_plan
    from balancer.cost import CostModel
    from balancer.partitioning import partition
    from balancer.plan import MicroBatches, StepPlan
    from balancer.planner import Planner, plan_step
    from balancer.policies import POLICIES
    from balancer.simulation.run import simulate
    from balancer.topology import Topology

__all__ = [
    "POLICIES",
    "Admission",
    "CostModel",
    "MicroBatches",
    "Planner",
    "StepPlan",
    "Topology",
    "admission",
    "check_plan",
    "partition",
    "plan_step",
    "simulate",
]

_HOMES = {
    "Admission": "balancer.checking",
    "CostModel": "balancer.cost",
    "MicroBatches": "balancer.plan",
    "POLICIES": "balancer.policies",
    "Planner": "balancer.planner",
    "StepPlan": "balancer.plan",
    "Topology": "balancer.topology",
    "admission": "balancer.checking",
    "check_plan": "balancer.checking",
    "partition": "balancer.partitioning",
    "plan_step": "balancer.planner",
    "simulate": "balancer.simulation.run",
}


def __getattr__(name: str) -> Any:
    """Load a name's module when it is first asked for: numba alone takes a third of a second."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'balancer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
