"""Slots of fewer degrees than are allowed: a slot lasts as long as its longest micro-batch.

Where many samples need wide groups, narrow ones beside them only add micro-batches that differ; and a
slot that waits for one sample of a narrow group may end sooner without that degree.
"""

from __future__ import annotations

from balancer.planning import waves
from balancer.planning.best import Best, shorter
from balancer.planning.ladder import ladder_of
from balancer.planning.problem import Problem, that_holds

MISSES = 2
"""Ranges of degrees in a row that may bring nothing."""


def divide(problem: Problem, best: Best | None) -> Best | None:
    """``best``, or a layout of `waves` with a range of the allowed degrees, if it is shorter.

    From the range that is best so far the narrowest degrees are left out one by one, then the widest, until
    neither helps. A range whose own lower bound is above the best is not built.
    """
    degrees = problem.cp_degrees
    low, high = 0, len(degrees)
    tried = {(low, high)}
    moved = True
    while moved:
        moved = False
        for narrowest in (True, False):
            misses = 0
            spans = range(low + 1, high) if narrowest else range(high - 1, low, -1)
            for span in [(k, high) if narrowest else (low, k) for k in spans]:
                if span in tried or misses == MISSES:
                    continue
                tried.add(span)
                found = _within(problem, degrees[slice(*span)], best)
                misses += found is best
                if found is not best:
                    best, moved, misses = found, True, 0
                    low, high = span
    return best


def part_of(problem: Problem, degrees: tuple[int, ...]) -> Problem | None:
    """The problem with those degrees alone, what is known of their costs kept; None if they hold not all."""
    part = problem.with_degrees(degrees)
    return part if that_holds(part, degrees) is part else None


def _within(problem: Problem, degrees: tuple[int, ...], best: Best | None) -> Best | None:
    part = part_of(problem, degrees)
    if part is None or (best is not None and ladder_of(part).lower_bound_ns >= best.time_ns):
        return best
    below_ns = waves.NEVER if best is None else best.time_ns
    return shorter(problem, best, [waves.divide(part, few_ways=True, below_ns=below_ns)])
