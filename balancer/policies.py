"""The ways to divide a step, one table: the default and what it is compared with.

All but ``balanced`` use one context-parallel degree for the whole step: the smallest allowed one that holds
the longest sample. Their groups are the step's *units*; each policy gives samples to units, and every unit's
list is cut into micro-batches by first fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from balancer._kernels import place
from balancer._kernels.differencing import largest_differencing
from balancer._kernels.order import group_by
from balancer.planning import alone, fewer, nested, search, waves
from balancer.planning.best import Best, shorter
from balancer.planning.ladder import ladder_of
from balancer.planning.layout import Layout
from balancer.planning.problem import Ints, Problem, padded

Policy = Callable[[Problem], Layout]

FEW = 16_384
"""Samples x ranks up to which plain divisions by time are compared at any gap: at most 0.3 ms."""

OPEN = 0.01
"""Gap of larger steps above which plain divisions and slots of fewer degrees are compared as well."""

OPEN_STEP = 0.03
"""Gap above which ranks that meet once a step may do better in equal slots. Fixed costs leave such gaps where
a rank has a few micro-batches; of 86 such steps of at most 2,048 samples 24 were won, by up to 17 %."""

LARGE, LARGE_STEP = 32_768, 8192
"""Samples above which a gap is left as it is: where ranks meet in slots, a pipeline's too, and once a step.
Tries take some 20 to 60 ms for 16,384 samples; once a step, a plan of those takes 5 ms, and its gap of a few
per cent is mostly the bound's."""

DIFFERENCES = 1 << 19
"""Samples x groups up to which largest differencing is compared: at most 4 ms. Above, it gains nothing over
`static_cp` that is worth its time."""


def balanced(problem: Problem) -> Layout:
    """The least predicted step time: degrees, groups and micro-batches chosen for the sync mode.

    Up to a few thousand samples it is at least as good as every other policy at any one degree, or within
    `OPEN` of the lower bound; how far that goes, `LARGE`, `LARGE_STEP` and `DIFFERENCES` say.
    """
    only = alone.divide(problem)
    if only is not None:
        return only
    bound_ns = ladder_of(problem).lower_bound_ns
    meet_in_slots = _meet_in_slots(problem)
    best: Best | None = None
    if problem.sync == "step":
        best = shorter(problem, best, [nested.divide(problem)])
    if meet_in_slots or problem.micro_batches:
        best = shorter(problem, best, [waves.divide(problem)])
    elif problem.fixed_ns(1) > 0 and _open(problem, best, bound_ns, OPEN_STEP):
        best = shorter(problem, best, [waves.divide(problem, few_ways=True, counts=2)])
    if meet_in_slots and _open(problem, best, bound_ns, OPEN):
        best = fewer.divide(problem, best)
    best = _plain(problem, best, bound_ns)
    if best is None:
        raise ValueError(
            f"no plan with {problem.micro_batches} micro_batches a rank was found: the step has "
            f"{problem.num_tokens.sum()} tokens, and {problem.ranks} ranks hold {problem.max_tokens.sum()} "
            "tokens in one micro-batch each. Allow more micro_batches, or leave their number free."
        )
    return search.improve(problem, best.layout, bound_ns)


def _open(problem: Problem, best: Best | None, bound_ns: int, gap: float) -> bool:
    """Whether more than ``gap`` is left above the bound, of a step that is not too large to go on."""
    large = LARGE if _meet_in_slots(problem) else LARGE_STEP
    return best is None or (len(problem) <= large and best.time_ns > bound_ns * (1 + gap))


def _meet_in_slots(problem: Problem) -> bool:
    """Whether a slot lasts as long as its longest micro-batch, or as if it did."""
    return problem.sync == "micro_batch" or problem.topology.pipeline_stages > 1


def _plain(problem: Problem, best: Best | None, bound_ns: int) -> Best | None:
    """``best``, or a division at one degree, if it is shorter.

    Up to `search.MOST_SAMPLES` all policies are compared whatever the gap is, so that none is ever faster.
    Otherwise the comparison is half of the time of 512 samples on 8 ranks. Samples dealt in table order are
    left out above `waves.MANY`: with so many they cost 9 % or more in every setting that was simulated.
    """
    few = len(problem) * problem.ranks <= FEW
    tiny = len(problem) <= search.MOST_SAMPLES
    if _open(problem, best, bound_ns, 0.0 if tiny else OPEN):
        for degree in problem.cp_degrees:
            part = fewer.part_of(problem, (degree,)) if _holds_all(problem, degree) else None
            if part is None or (best is not None and best.time_ns <= _least_ns(part, degree)):
                continue
            policies = [static_cp, equal_tokens, sum_of_squares]
            if len(problem) <= waves.MANY:
                policies += [equal_samples, padded_batches]
            if len(problem) * problem.ranks // degree <= DIFFERENCES:
                policies.append(karmarkar_karp)
            best = shorter(problem, best, (policy(part) for policy in policies))
    elif few and _open(problem, best, bound_ns, waves.CLOSE) and _any_holds_all(problem):
        best = shorter(problem, best, [static_cp(problem), karmarkar_karp(problem)])
    return best


def _any_holds_all(problem: Problem) -> bool:
    return any(_holds_all(problem, degree) for degree in problem.cp_degrees)


def _least_ns(problem: Problem, degree: int) -> int:
    """A bound for plans at that degree alone: its work, spread evenly. 0 where ranks differ in speed."""
    if problem.topology.speed is not None:
        return 0
    return int(problem.work_ns(degree).sum(dtype=np.float64)) // problem.topology.group_starts(degree).size


def padded_batches(problem: Problem) -> Layout:
    """Samples dealt round in table order, micro-batches padded to their longest: no packing."""
    return _cut(problem, _dealt(problem), in_table_order=True, to_longest=True)


def equal_samples(problem: Problem) -> Layout:
    """Samples dealt round in table order, as a distributed sampler does, then packed."""
    return _cut(problem, _dealt(problem), in_table_order=True)


def equal_tokens(problem: Problem) -> Layout:
    """Each sample, longest first, to the unit with the fewest tokens."""
    return _cut(problem, _lightest(problem, problem.num_tokens))


def sum_of_squares(problem: Problem) -> Layout:
    """The same by squared length: attention alone, as if the linear part cost nothing."""
    # Scaled to 31 bits, so that the sums of 2**31 samples fit 64.
    longest = int(problem.num_tokens[0])
    shift = max(0, 2 * longest.bit_length() - 31)
    squares = (problem.num_tokens.astype(np.float64) ** 2 / (1 << shift)).astype(np.int64)
    return _cut(problem, _lightest(problem, squares))


def karmarkar_karp(problem: Problem) -> Layout:
    """Largest differencing on predicted time, free counts."""
    degree = _one_degree(problem)
    units = problem.topology.group_starts(degree).size
    bits = max(1, (len(problem) - 1).bit_length())
    return _cut(problem, largest_differencing(problem.work_ns(degree), units, bits))


def static_cp(problem: Problem) -> Layout:
    """Each sample, longest first, to the unit with the least predicted time: balanced, at one degree."""
    return _cut(problem, _lightest(problem, problem.work_ns(_one_degree(problem))))


def _holds_all(problem: Problem, degree: int) -> bool:
    """Whether every group of ``degree`` ranks holds the longest sample, and may take the shortest."""
    room = degree * int(problem.max_tokens.min())
    if padded(problem.num_tokens[:1], degree).max(initial=0) > room:
        return False
    return int(problem.num_tokens.min(initial=room)) >= problem.min_length.get(degree, 0)


def _one_degree(problem: Problem) -> int:
    """The smallest allowed degree at which every group holds every sample."""
    for degree in problem.cp_degrees:
        if _holds_all(problem, degree):
            return degree
    least = f" and min_length {dict(problem.min_length)}" if problem.min_length else ""
    raise ValueError(
        f"no degree of {problem.cp_degrees} suits all samples: every group would have to hold those of "
        f"{problem.num_tokens[-1]} to {problem.num_tokens[0]} tokens (row {problem.rows[0]}), max_tokens is "
        f"from {problem.max_tokens.min()} to {problem.max_tokens.max()}{least}. Use policy='balanced'."
    )


def _dealt(problem: Problem) -> Ints:
    return problem.rows % problem.topology.group_starts(_one_degree(problem)).size


def _lightest(problem: Problem, weight: Ints) -> Ints:
    load = np.zeros(problem.topology.group_starts(_one_degree(problem)).size, np.int64)
    units: Ints = place.least_loaded(weight, load, max(1, (load.size - 1).bit_length())).astype(np.int64)
    return units


def _cut(
    problem: Problem, unit_of: Ints, *, in_table_order: bool = False, to_longest: bool = False
) -> Layout:
    """Micro-batches of the samples that each unit was given."""
    degree = _one_degree(problem)
    starts = problem.topology.group_starts(degree)
    sequence = np.argsort(problem.rows) if in_table_order else np.arange(len(problem))
    order, offsets = group_by(unit_of[sequence], starts.size)
    room = degree * problem.max_tokens[starts[:, None] + np.arange(degree)].min(axis=1)
    cut = place.next_fit_padded if to_longest else place.first_fit
    grouped, bounds, unit = cut(padded(problem.num_tokens, degree), sequence[order], offsets, room)
    return Layout(
        first_rank=starts[unit],
        cp_degree=np.full(unit.size, degree),
        order=grouped,
        offsets=bounds,
        to_longest=to_longest,
    )


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "padded": padded_batches,
        "equal_samples": equal_samples,
        "equal_tokens": equal_tokens,
        "sum_of_squares": sum_of_squares,
        "karmarkar_karp": karmarkar_karp,
        "static_cp": static_cp,
        "balanced": balanced,
    }
)
"""Policies by name; each turns a step's problem into a layout."""
