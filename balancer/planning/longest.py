"""The longest step that can be planned: times are whole nanoseconds in 64 bits, and must not run over."""

from __future__ import annotations

from balancer.planning.problem import Problem
from packing._rows import float_sum

LONGEST_NS = 2**60
"""36 years: a cost model that predicts more has another unit than seconds."""

MOST_WORK_NS = 2**62
"""The same for the work of all ranks together: 146 years, or 78 hours on each of 16,384."""


def check_total(problem: Problem) -> None:
    """Refuse a step whose work cannot be summed. Raises ValueError."""
    degree = problem.cp_degrees[0]
    if float_sum(problem.work_ns(degree)) * degree >= MOST_WORK_NS:
        raise ValueError(
            "the cost model predicts more than 2**62 nanoseconds (146 years) of work in one step. "
            "Coefficients are seconds per token and per pair; check their unit."
        )


def check_fixed(problem: Problem) -> None:
    """Refuse fixed costs that cannot be summed, or that pay for micro-batches. Raises ValueError."""
    for degree in (1, *problem.cp_degrees):
        _check_fixed(problem, degree)


def _check_fixed(problem: Problem, degree: int) -> None:
    try:
        fixed = problem.fixed_ns(degree)
    except OverflowError:  # infinite
        raise too_long() from None
    if fixed < 0:
        raise ValueError(
            f"costs must be at least 0, the model gives {fixed} ns for every micro-batch at degree {degree}."
        )
    if fixed >= LONGEST_NS:
        raise too_long()


class TooLong(ValueError):
    """A plan, or every plan of a step, takes longer than `LONGEST_NS`."""


def too_long() -> TooLong:
    """The refusal of a step that takes longer."""
    return TooLong(
        "the cost model predicts steps beyond 2**60 nanoseconds (36 years). Coefficients are seconds per "
        "token and per pair; check their unit."
    )
