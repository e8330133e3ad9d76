"""Ranks that meet once a step: nested groups, the widest first, then the small samples evenly.

Groups of degrees that divide each other, at multiples of their degree, are nested or apart. Every rank runs
its widest block's micro-batches first and the narrowest last. All members of a block have then done the same
before it, arrive together, and meet its micro-batches in one order: nobody waits, no cycle of waits forms,
and a rank's time is the sum along its path.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer._kernels import counted, partition, place, riders
from balancer._kernels import nested as kernels
from balancer._kernels.order import group_by
from balancer._kernels.ride import ride
from balancer._kernels.sums import rank_sums
from balancer.planning.blocks import Blocks, make_blocks
from balancer.planning.ladder import Ladder, ladder_of
from balancer.planning.layout import SPEED_UNIT, Layout, exact_sum, slowness
from balancer.planning.problem import Ints, Problem, padded, that_holds

Floats = NDArray[np.float64]

GUESSES = (1.0, 1.0005, 1.002, 1.01, 0.9, 0.75, 0.6, 0.5, 0.4, 0.3, 0.25, 1.03, 1.1, 1.25)
"""Shares of the lower bound within which the wide samples shall end, in the order of trial."""

TOLERANCE = 0.002

DENSE = 0.9
"""Share of the work that is dealt by density before the rest is dealt by time."""

CHAINS = 4
"""Chains of degrees that are planned to the end."""

RIDERS = 0.7
"""Largest share of the samples of at most half a micro-batch that may ride in wide micro-batches."""

SPARES = (0.002, 0.01, 0.03, 0.06, 0.1, 0.15, 0.25, 0.4)
"""Room for tokens above what is needed, in the order of trial."""

ROUNDS = 4
"""Micro-batches a unit, below which a whole number for every unit is tried as well."""

MANY = 4096
"""Samples above which two numbers of micro-batches are tried, at 4 ms each for 60,000 samples."""

SKIPPED = 10.0
"""The second one costs at least this part of what the first one's unevenness costs."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Wide:
    """Where the samples of the larger degrees stand."""

    count: int
    """Samples ``0..count - 1`` run on a larger degree."""
    node: Ints
    """[count] block of each."""
    load: Ints
    """[R] nanoseconds of each rank so far."""
    estimate: float
    """Nanoseconds at which the whole step might end."""


def place_wide(problem: Problem, ladder: Ladder, blocks: Blocks) -> Wide:
    """Choose the degrees and place the samples of the larger ones."""
    ranks = problem.ranks
    load = np.zeros(ranks, np.int64)
    node = np.zeros(ladder.time_ns.shape[1], np.int64)
    lo = np.zeros(ladder.degrees.size, np.int64)
    base = int(ladder.degrees[0])
    usable = np.zeros(ranks, np.bool_)
    for start in blocks.starts[: blocks.bounds[1]].tolist():
        usable[start : start + base] = True
    speed = SPEED_UNIT / slowness(problem) * usable
    guesses = ladder.lower_bound_ns * np.array(GUESSES)
    fixed_per_token = ladder.fixed_ns[0] / float(problem.max_tokens.max())
    _, estimate = kernels.choose_degrees(
        guesses, TOLERANCE, ladder.lower_bound_ns, 0.0, ladder.speed, ladder.memory, ladder.base_ns,
        ladder.base_sums, problem.first_too_short(), problem.num_tokens, ladder.time_ns, ladder.degrees,
        ladder.fixed_ns, blocks.starts, blocks.bounds, blocks.room, blocks.pace, SPEED_UNIT,
        max(1, (ranks - 1).bit_length()), speed, exact_sum(speed), fixed_per_token, load, node, lo,
    )  # fmt: skip
    return Wide(count=int(lo[0]), node=node[: int(lo[0])], load=load, estimate=float(estimate))


def divide(problem: Problem) -> list[Layout]:
    """Nested plans of chains of degrees that divide each other; none where no chain holds every sample."""
    chains = divisor_chains(problem.cp_degrees)
    starts = []
    for chain in chains:
        part = that_holds(problem, chain)
        if part is not None:
            ladder, blocks = ladder_of(part), make_blocks(part)
            starts.append((part, ladder, blocks, place_wide(part, ladder, blocks)))
    # Estimates say how long a step would be if the rest could be spread evenly; the best few are finished.
    starts.sort(key=lambda start: start[3].estimate)
    return [finish(*start) for start in starts[:CHAINS]]


def divisor_chains(degrees: tuple[int, ...]) -> list[tuple[int, ...]]:
    """One chain of divisors below each degree that divides no larger one; each chain rises."""
    chains = []
    for top in degrees:
        if any(other > top and other % top == 0 for other in degrees):
            continue
        chain = [top]
        for degree in reversed(degrees):
            if degree < chain[-1] and chain[-1] % degree == 0:
                chain.append(degree)
        chains.append(tuple(reversed(chain)))
    return chains


def finish(problem: Problem, ladder: Ladder, blocks: Blocks, wide: Wide) -> Layout:
    """Cut the wide groups' lists into micro-batches; spread the rest over the smallest groups."""
    cut = _cut_wide(problem, blocks, wide)
    rest = np.arange(wide.count, len(problem))
    load = wide.load
    if ladder.fixed_ns[0] > 0 and cut.block.size and rest.size:
        load = _rank_loads(problem, ladder, blocks, cut)
        cut, rest = _with_riders(problem, ladder, blocks, cut, rest, load)
    units = int(blocks.bounds[1])
    starts, pace, room = blocks.starts[:units], blocks.pace[:units], blocks.room[:units]
    work = ladder.base_ns[rest]
    tokens = padded(problem.num_tokens[rest], int(ladder.degrees[0]))
    if ladder.fixed_ns[0] > 0 and work.size:
        bin_of, unit = fill_counted(work, tokens, load[starts], pace, room, int(ladder.fixed_ns[0]))
        order, offsets = group_by(bin_of, unit.size)
    else:
        unit_of = _spread(work, tokens, load[starts], pace, room, ladder.lower_bound_ns)
        lists, list_bounds = group_by(unit_of, units)
        order, offsets, unit = place.first_fit(tokens, lists, list_bounds, room)
    block = np.concatenate([cut.block, unit])
    return Layout(
        first_rank=blocks.starts[block],
        cp_degree=blocks.degree[block],
        order=np.concatenate([cut.order, rest[order]]),
        offsets=np.concatenate([cut.offsets, offsets[1:] + cut.offsets[-1]]),
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Cut:
    """Micro-batches of the wide groups, widest first. Axis: W = micro-batches."""

    block: Ints
    """[W]"""
    order: Ints
    """Samples, micro-batch after micro-batch."""
    offsets: Ints
    """[W + 1]"""


def _cut_wide(problem: Problem, blocks: Blocks, wide: Wide) -> Cut:
    # Blocks are numbered by rising degree.
    last = blocks.starts.size - 1
    lists, list_bounds = group_by(last - wide.node, blocks.starts.size)
    pieces = 2 * blocks.degree[wide.node]
    tokens = -(-problem.num_tokens[: wide.count] // pieces) * pieces
    order, offsets, block = place.first_fit(tokens, lists, list_bounds, blocks.room[::-1].copy())
    return Cut(block=last - block, order=order, offsets=offsets)


def _levels_of(blocks: Blocks, block: Ints) -> Ints:
    """[W] index of each block's degree."""
    levels: Ints = np.searchsorted(blocks.bounds, block, side="right") - 1
    return levels


def _rank_loads(problem: Problem, ladder: Ladder, blocks: Blocks, cut: Cut) -> Ints:
    """[R] nanoseconds of the wide micro-batches, as they were cut."""
    level = _levels_of(blocks, cut.block)
    cost = riders.costs(cut.order, cut.offsets, level, ladder.time_ns, ladder.fixed_ns)
    load: Ints
    load, _ = rank_sums(
        blocks.starts[cut.block], blocks.degree[cut.block], cost, slowness(problem), SPEED_UNIT
    )
    return load


def _with_riders(
    problem: Problem, ladder: Ladder, blocks: Blocks, cut: Cut, rest: Ints, load: Ints
) -> tuple[Cut, Ints]:
    """Fill the wide micro-batches with shorter samples; returns them and the samples that are left.

    A sample that rides saves its share of a micro-batch of its own, ``fixed / cap`` a token, and pays for
    communication. With FlexSP's numbers that is 38 us against 14 to 17 inside a node. Updates ``load``.
    """
    level = _levels_of(blocks, cut.block)
    degree = blocks.degree[cut.block]
    free = riders.room_left(cut.order, cut.offsets, degree, blocks.room[cut.block], problem.num_tokens)
    saved = ladder.fixed_ns[0] * float(ladder.degrees[0]) / float(blocks.room[0])
    # What riding costs is looked at on a sample of middle length, the same for all.
    middle = int(rest[rest.size // 2])
    length = int(problem.num_tokens[middle])
    per_degree = problem.cost_of(length)
    pays = np.array(
        [
            d * t - ladder.degrees[0] * per_degree[0] < saved * length
            for d, t in zip(ladder.degrees.tolist(), per_degree, strict=True)
        ]
    )
    pays[0] = False
    level = np.where(pays[level], level, -1)
    room = int(free[level >= 0].sum())
    short = problem.first_too_short()[np.flatnonzero(pays)].min(initial=len(problem))
    if room <= 0 or rest[0] >= short:
        return cut, rest
    candidates = riders.candidates(rest[rest < short], problem.num_tokens, blocks.room[0], room, RIDERS)
    end = _fair_end(problem, ladder, load, rest)
    first = blocks.starts[cut.block]
    used_levels = np.unique(level[level >= 0])
    row = np.searchsorted(used_levels, level)
    batch_of = ride(
        problem.num_tokens[candidates],
        problem.work_ns_of(ladder.degrees[used_levels].tolist(), candidates),
        np.where(level >= 0, row, -1), degree, free, np.full(degree.size, int(end)), first, first + degree,
        slowness(problem), SPEED_UNIT, load,
    )  # fmt: skip
    order, offsets, left = riders.join(cut.order, cut.offsets, candidates, batch_of, len(problem))
    return Cut(block=cut.block, order=order, offsets=offsets), left


def _fair_end(problem: Problem, ladder: Ladder, load: Ints, rest: Ints) -> float:
    """When all ranks would end, were the rest spread evenly in full micro-batches."""
    end: float = riders.fair_end(
        load, slowness(problem), SPEED_UNIT, rest, problem.num_tokens, ladder.base_ns, ladder.degrees[0],
        float(ladder.fixed_ns[0]) / float(problem.max_tokens.max()),
    )  # fmt: skip
    return end


def _spread(work: Ints, tokens: Ints, load: Ints, pace: Ints, room: Ints, bound: int) -> Ints:
    """[S] unit of each sample, longest first onto the least loaded; micro-batches are free of cost.

    Where the end lies above the bound, the fullest unit trades with others. The tolerance and the number of
    trades follow the units, so that trading stays below the greedy's time. Updates ``load``.
    """
    units = load.size
    if np.any(pace != pace[0]) or tokens.max(initial=0) > room.min():
        unequal: Ints = place.least_finish(work, tokens, load, pace, room, SPEED_UNIT)
        return unequal
    unit_of: Ints = place.least_loaded(work, load, max(1, (units - 1).bit_length())).astype(np.int64)
    if work.size and load.max() > bound * (1 + max(2e-5, 5e-7 * units)):
        items, offsets = group_by(unit_of, units)
        partition.trade(work, items, offsets, load, True, min(2000, 100_000 // units), 1e-6, unit_of)
    return unit_of


def fill_counted(
    work: Ints, tokens: Ints, load: Ints, pace: Ints, room: Ints, fixed: int
) -> tuple[Ints, Ints]:
    """([S] micro-batch of each sample, [B] unit of each micro-batch), when each micro-batch costs."""
    held = int(tokens.sum())
    needed = {math.ceil(held * (1 + spare) / room.max()) for spare in SPARES}
    # Where one micro-batch holds more than a unit's share, the fewest would leave units empty.
    fewest = min(needed)
    if fewest < ROUNDS * load.size:
        needed.add(-(-fewest // load.size) * load.size)
    bin_of, unit_of_bin = counted.fill_counted(
        work, tokens, load, pace, room, SPEED_UNIT, fixed, np.array(sorted(needed)), DENSE,
        SKIPPED if work.size > MANY else 0.0,
    )  # fmt: skip
    return bin_of, unit_of_bin
