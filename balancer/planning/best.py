"""The shortest layout so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from balancer.planning.layout import Layout, objective_ns, slots_of
from balancer.planning.longest import TooLong
from balancer.planning.problem import Problem


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Best:
    """A layout and how long the step takes under it."""

    layout: Layout
    time_ns: int


def shorter(problem: Problem, best: Best | None, layouts: Iterable[Layout | None]) -> Best | None:
    """``best``, or the shortest of ``layouts`` that keep to the slots asked for; ties stay with the first.

    Layouts beyond `balancer.planning.longest.LONGEST_NS` do not count.
    """
    for layout in layouts:
        if layout is None:
            continue
        if problem.micro_batches is not None and slots_of(problem, layout)[1] > problem.micro_batches:
            continue
        try:
            time_ns = objective_ns(problem, layout)
        except TooLong:
            continue  # another one may be short enough
        if best is None or time_ns < best.time_ns:
            best = Best(layout=layout, time_ns=time_ns)
    return best
