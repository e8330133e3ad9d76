"""A time that no plan can beat."""

from __future__ import annotations

from balancer.planning import alone
from balancer.planning.ladder import ladder_of
from balancer.planning.problem import Problem


def lower_bound_ns(problem: Problem) -> int:
    """Nanoseconds that every plan of this problem takes at least. 0 for an empty step."""
    if len(problem) == 0:
        return 0
    bound = alone.bound_ns(problem)
    return ladder_of(problem).lower_bound_ns if bound is None else bound
