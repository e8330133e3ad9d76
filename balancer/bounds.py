"""A time that no plan can beat."""

from __future__ import annotations

from balancer.planning.problem import Problem


def lower_bound_ns(problem: Problem) -> int:
    """Nanoseconds that every plan of this problem takes at least. 0 for an empty step."""
    if len(problem) == 0:
        return 0
    work = problem.work_ns(1)
    fixed = problem.fixed_ns(1)
    tokens = int(problem.num_tokens.sum())
    capacity = int(problem.max_tokens.max())
    batches = -(-tokens // capacity)
    if problem.sync == "micro_batch":
        slots = -(-batches // problem.ranks)
        mean = -(-int(work.sum()) // problem.ranks) + fixed * slots
        return max(mean, int(work[0]) + fixed * slots)
    mean = -(-(int(work.sum()) + fixed * batches) // problem.ranks)
    return max(mean, int(work[0]) + fixed)
