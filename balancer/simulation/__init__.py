"""What training steps would take on a cluster: the planner's own plans, run operation by operation."""

from __future__ import annotations

from balancer.simulation.flops import ModelFlops
from balancer.simulation.outcome import SimulatedPolicy
from balancer.simulation.run import simulate
from balancer.simulation.walk import Walk, walk

__all__ = ["ModelFlops", "SimulatedPolicy", "Walk", "simulate", "walk"]
