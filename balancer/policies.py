"""The ways to divide a step, one table: the default and what it is compared with.

All but ``balanced`` use one context-parallel degree for the whole step: the smallest allowed one that holds
the longest sample. Their groups are the step's *units*; each policy gives samples to units, and every unit's
list is cut into micro-batches by first fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from balancer._kernels import place, sums
from balancer._kernels.differencing import largest_differencing
from balancer._kernels.order import group_by
from balancer.planning import alone, fewer, nested, search, waves
from balancer.planning.best import Best, shorter
from balancer.planning.blocks import make_blocks
from balancer.planning.ladder import ladder_of
from balancer.planning.layout import SPEED_UNIT, Layout
from balancer.planning.longest import too_long
from balancer.planning.problem import Ints, Problem, padded, that_holds

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

EXACT = 1 - 1e-12
"""A bound that was summed in floats is as far below what it says at most."""

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
        best = shorter(problem, best, nested.divide(problem))
    if meet_in_slots or problem.micro_batches or best is None:
        best = shorter(problem, best, [waves.divide(problem)])
    elif problem.fixed_ns(1) > 0 and _open(problem, best, bound_ns, OPEN_STEP):
        best = shorter(problem, best, [waves.divide(problem, few_ways=True, counts=2)])
    if meet_in_slots and _open(problem, best, bound_ns, OPEN):
        best = fewer.divide(problem, best)
    best = _plain(problem, best, bound_ns)
    if best is None:
        raise _none_found(problem)
    return search.improve(problem, best.layout, bound_ns)


def _none_found(problem: Problem) -> ValueError:
    if problem.micro_batches is not None:
        return ValueError(
            f"no plan with {problem.micro_batches} micro_batches a rank was found: the step has "
            f"{problem.num_tokens.sum()} tokens, and {problem.ranks} ranks hold {problem.max_tokens.sum()} "
            "tokens in one micro-batch each. Allow more micro_batches, or leave their number free."
        )
    if that_holds(problem, problem.cp_degrees) is None:
        return ValueError(
            "no chain of degrees that divide each other holds every sample: cp_degrees "
            f"{problem.cp_degrees}, min_length {dict(problem.min_length)}. Allow degree 1 or other degrees."
        )
    return too_long()  # every layout was


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
    Samples dealt in table order are left out above `waves.MANY`: with so many they cost 9 % or more in every
    setting that was simulated. What a bound proves to be no shorter is not cut into micro-batches: 1,564 of
    2,456 divisions in 388 steps of eight mixes.
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
            for policy in policies:
                best = shorter(problem, best, [policy.shorter_than(part, best)])
    elif few and _open(problem, best, bound_ns, waves.CLOSE) and _any_holds_all(problem):
        for policy in (static_cp, karmarkar_karp):
            best = shorter(problem, best, [policy.shorter_than(problem, best)])
    return best


def _any_holds_all(problem: Problem) -> bool:
    return any(_holds_all(problem, degree) for degree in problem.cp_degrees)


def _least_ns(problem: Problem, degree: int) -> float:
    """A bound for plans at that degree alone: work and fixed costs spread evenly, and the longest sample."""
    if problem.topology.speed is not None:
        return 0.0
    groups = problem.topology.group_starts(degree).size
    work, fixed = problem.work_ns(degree), problem.fixed_ns(degree)
    batches = -(-int(padded(problem.num_tokens, degree).sum()) // problem.group_room(degree)) / groups
    if problem.sync == "micro_batch":
        batches = float(math.ceil(batches))
    mean, later = float(work.sum()) / groups + fixed * batches, problem.topology.pipeline_stages - 1
    longest = float(work.max()) + fixed
    if problem.sync == "micro_batch":
        return (mean + later * longest) * EXACT
    return max(mean, (1 + later) * longest) * EXACT


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


@dataclass(frozen=True, kw_only=True, slots=True)
class AtOneDegree:
    """A policy of one degree: samples to its groups, each one's list cut into micro-batches by first fit."""

    unit_of: Callable[[Problem], Ints]
    """[S] group of each sample."""
    in_table_order: bool = False
    """Whether lists are cut in the order of the table, not longest first."""
    to_longest: bool = False
    """Whether micro-batches are padded to their longest sample: no packing."""

    def __call__(self, problem: Problem) -> Layout:
        """The policy's layout. Raises ValueError where no degree holds all samples."""
        return self._cut(problem, self.unit_of(problem))

    def shorter_than(self, problem: Problem, best: Best | None) -> Layout | None:
        """The same, not padded, or None where one group's samples alone take as long as ``best``."""
        unit_of = self.unit_of(problem)
        if best is not None and _latest_ns(problem, unit_of) >= best.time_ns:
            return None
        return replace(self._cut(problem, unit_of), to_longest=False)

    def _cut(self, problem: Problem, unit_of: Ints) -> Layout:
        degree = _one_degree(problem)
        starts, room, _ = _units(problem, degree)
        sequence = np.argsort(problem.rows) if self.in_table_order else np.arange(len(problem))
        order, offsets = group_by(unit_of[sequence], starts.size)
        cut = place.next_fit_padded if self.to_longest else place.first_fit
        grouped, bounds, unit = cut(padded(problem.num_tokens, degree), sequence[order], offsets, room)
        return Layout(
            first_rank=starts[unit],
            cp_degree=np.full(unit.size, degree),
            order=grouped,
            offsets=bounds,
            to_longest=self.to_longest,
        )


def _units(problem: Problem, degree: int) -> tuple[Ints, Ints, Ints]:
    """([U] first ranks, [U] tokens of a micro-batch, [U] slowness) of the groups of ``degree`` ranks."""
    blocks = make_blocks(problem if problem.cp_degrees == (degree,) else problem.with_degrees((degree,)))
    return blocks.starts, blocks.room, blocks.pace


def _latest_ns(problem: Problem, unit_of: Ints) -> float:
    """What the busiest group computes at least."""
    degree = _one_degree(problem)
    _, room, pace = _units(problem, degree)
    latest: float = sums.latest_unit(
        unit_of, problem.work_ns(degree), padded(problem.num_tokens, degree), room, pace, SPEED_UNIT,
        problem.fixed_ns(degree), problem.topology.pipeline_stages - 1,
    )  # fmt: skip
    return latest * EXACT


def _dealt(problem: Problem) -> Ints:
    return problem.rows % problem.topology.group_starts(_one_degree(problem)).size


def _lightest(problem: Problem, weight: Ints) -> Ints:
    load = np.zeros(problem.topology.group_starts(_one_degree(problem)).size, np.int64)
    units: Ints = place.least_loaded(weight, load, max(1, (load.size - 1).bit_length())).astype(np.int64)
    return units


def _by_squares(problem: Problem) -> Ints:
    # Scaled to 31 bits, so that the sums of 2**31 samples fit 64.
    longest = int(problem.num_tokens[0])
    shift = max(0, 2 * longest.bit_length() - 31)
    squares = (problem.num_tokens.astype(np.float64) ** 2 / (1 << shift)).astype(np.int64)
    return _lightest(problem, squares)


def _by_differences(problem: Problem) -> Ints:
    degree = _one_degree(problem)
    units = problem.topology.group_starts(degree).size
    bits = max(1, (len(problem) - 1).bit_length())
    unit_of: Ints = largest_differencing(problem.work_ns(degree), units, bits)
    return unit_of


padded_batches = AtOneDegree(unit_of=_dealt, in_table_order=True, to_longest=True)
"""Samples dealt round in table order, micro-batches padded to their longest: no packing."""

equal_samples = AtOneDegree(unit_of=_dealt, in_table_order=True)
"""Samples dealt round in table order, as a distributed sampler does, then packed."""

equal_tokens = AtOneDegree(unit_of=lambda problem: _lightest(problem, problem.num_tokens))
"""Each sample, longest first, to the unit with the fewest tokens."""

sum_of_squares = AtOneDegree(unit_of=_by_squares)
"""The same by squared length: attention alone, as if the linear part cost nothing."""

karmarkar_karp = AtOneDegree(unit_of=_by_differences)
"""Largest differencing on predicted time, free counts."""

static_cp = AtOneDegree(unit_of=lambda problem: _lightest(problem, problem.work_ns(_one_degree(problem))))
"""Each sample, longest first, to the unit with the least predicted time: balanced, at one degree."""


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
