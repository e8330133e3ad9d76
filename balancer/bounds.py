"""A time that no plan can beat."""

from __future__ import annotations

from balancer.planning.ladder import ladder_of
from balancer.planning.problem import Problem


def lower_bound_ns(problem: Problem) -> int:
    """Nanoseconds that every plan of this problem takes at least. 0 for an empty step."""
    return ladder_of(problem).lower_bound_ns if len(problem) else 0
