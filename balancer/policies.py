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
from balancer.planning import alone, nested, search, waves
from balancer.planning.ladder import ladder_of
from balancer.planning.layout import Layout, objective_ns, slots_of
from balancer.planning.problem import Ints, Problem, padded

Policy = Callable[[Problem], Layout]

PLAIN = 16_384
"""Samples x ranks up to which the default also looks at plain divisions by time: at most 0.3 ms."""


def balanced(problem: Problem) -> Layout:
    """The least predicted step time: degrees, groups and micro-batches chosen for the sync mode."""
    only = alone.divide(problem)
    if only is not None:
        return only
    found: list[Layout | None] = []
    if problem.sync == "step":
        found.append(nested.divide(problem))
    if problem.sync == "micro_batch" or problem.micro_batches or problem.topology.pipeline_stages > 1:
        found.append(waves.divide(problem))
    candidates = [layout for layout in found if layout is not None]
    bound_ns = ladder_of(problem).lower_bound_ns
    # Few samples are compared whatever the gap is, so that no plain policy is ever faster. Otherwise the
    # comparison is half of the time of 512 samples on 8 ranks.
    enough = bound_ns * (1 + waves.CLOSE) if len(problem) > search.MOST_SAMPLES else bound_ns
    if not (candidates and _within(problem, candidates, enough)):
        candidates += _plain(problem)
    if problem.micro_batches is not None:
        candidates = [c for c in candidates if slots_of(problem, c)[1] <= problem.micro_batches]
    if not candidates:
        raise ValueError(
            f"no plan with {problem.micro_batches} micro_batches a rank was found: the step has "
            f"{problem.num_tokens.sum()} tokens, and {problem.ranks} ranks hold {problem.max_tokens.sum()} "
            "tokens in one micro-batch each. Allow more micro_batches, or leave their number free."
        )
    layout = candidates[0]
    if len(candidates) > 1:
        layout = min(candidates, key=lambda layout: objective_ns(problem, layout))
    return search.improve(problem, layout, bound_ns)


def _within(problem: Problem, layouts: list[Layout], enough: float) -> bool:
    """Whether one of them ends in time and in the slots that are asked for."""
    most = problem.micro_batches
    return len(problem) * problem.ranks <= PLAIN and any(
        objective_ns(problem, layout) <= enough and (most is None or slots_of(problem, layout)[1] <= most)
        for layout in layouts
    )


def _plain(problem: Problem) -> list[Layout]:
    """Divisions at one degree. Of 600 random steps of up to 400 samples they won 178, by up to 8 %."""
    few = 0 < len(problem) * problem.ranks <= PLAIN
    if not few or not any(_holds_all(problem, degree) for degree in problem.cp_degrees):
        return []
    return [static_cp(problem), karmarkar_karp(problem)]


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
