"""The longest step that can be planned: times are whole nanoseconds in 64 bits, and must not run over."""

from __future__ import annotations

import numpy as np

from balancer.planning.problem import Problem

LONGEST_NS = 2**60
"""36 years: a cost model that predicts more has another unit than seconds."""

MOST_WORK_NS = 2**62
"""The same for the work of all ranks together: 146 years, or 78 hours on each of 16,384."""


def check_total(problem: Problem) -> None:
    """Refuse a step whose work cannot be summed. Raises ValueError."""
    degree = problem.cp_degrees[0]
    work = problem.work_ns(degree)
    if float(work.sum(dtype=np.float64)) * degree >= MOST_WORK_NS:
        raise ValueError(
            "the cost model predicts more than 2**62 nanoseconds (146 years) of work in one step. "
            "Coefficients are seconds per token and per pair; check their unit."
        )


class TooLong(ValueError):
    """A plan, or every plan of a step, takes longer than `LONGEST_NS`."""


def too_long() -> TooLong:
    """The refusal of a step that takes longer."""
    return TooLong(
        "the cost model predicts steps beyond 2**60 nanoseconds (36 years). Coefficients are seconds per "
        "token and per pair; check their unit."
    )
