"""Slots of equal micro-batches: for ranks that meet in every one, for pipelines, and for fixed counts.

A slot lasts as long as its longest micro-batch, so alike ones belong together. Wide groups come first, each
in the slot that grows least by it; the height to which all slots must be filled follows from the work that
is left; then one micro-batch for each free group of the smallest degree is filled up to its slot's height.
At last the finished packs are sorted and dealt to the slots, tallest slot first, which can only help.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer._kernels import waves as kernels
from balancer._kernels.fill import fill
from balancer._kernels.place import first_fit, tightest_fit
from balancer._kernels.ride import ride
from balancer.planning.blocks import Blocks, make_blocks
from balancer.planning.ladder import Ladder, ladder_of
from balancer.planning.layout import SPEED_UNIT, Layout, layout_of, objective_ns
from balancer.planning.problem import Ints, Problem, padded, that_holds


@dataclass(frozen=True, kw_only=True)
class Way:
    """How to build a layout."""

    height: float
    """Slot height at which the degrees of the long samples are chosen, in parts of the mean height."""
    riders: bool
    """Whether other samples ride in the wide groups that end before their slot."""
    tight: bool = False
    """Whether the rest is packed by tokens alone."""


HEIGHTS: tuple[float, ...] = (1.0, 1.15, 1.4, 2.0)
"""Heights of `Way` in the order of trial."""

NARROW = Way(height=64.0, riders=False, tight=True)

MANY = 2048
"""Samples above which only the ways that promise most are built: 16,384 on 1,024 ranks take 2 ms each."""

CLOSE = 1e-4
"""Gap of a step of many samples that is not worth another try."""

DENSE = 0.8
"""Share of the work that is dealt by density before the rest is dealt by time."""


def divide(problem: Problem, *, few_ways: bool = False, counts: int | None = None) -> Layout | None:
    """The best of several numbers of slots and heights; None where none of them holds the step.

    Args:
        problem: the step.
        few_ways: whether only ways that let others ride are built, at `_promising` heights, until a number of
            slots brings nothing: half of the time, and of 52 steps of seven mixes none got longer by it.
        counts: numbers of slots to try at most; ``None``: as long as they promise something.

    With many samples few ways are built in any case: the third number of slots won none of 24 steps of six
    mixes on 64 to 1,024 ranks, and of 147 small steps, where all ways are built, eight would get longer by
    few ways, by at most 2.3 %, in 0.5 of the time.
    """
    part = that_holds(problem, problem.cp_degrees)
    if part is None:
        return None
    problem = part
    ladder, blocks = ladder_of(problem), make_blocks(problem)
    heights = HEIGHTS[:1] if ladder.degrees.size == 1 else HEIGHTS
    few_ways = few_ways or len(problem) > MANY
    with_riders = (True,) if ladder.degrees.size == 1 or few_ways else (True, False)
    promising = heights
    enough = ladder.lower_bound_ns * (1 + (CLOSE if len(problem) > MANY else 0))
    best: Layout | None = None
    best_ns = misses = 0
    evened = False
    for slots in itertools.islice(slot_counts(problem), counts):
        ways = [Way(height=height, riders=riders) for height in promising for riders in with_riders]
        layouts = [build(problem, ladder, blocks, slots, way) for way in ways]
        even = any(layout is not None for layout in layouts)
        if not even:
            # Even work leaves too little room somewhere: pack as tightly as first fit does, at last with
            # larger degrees only for samples that need their memory.
            ways = [Way(height=h, riders=r, tight=True) for h in heights for r in (True, False)] + [NARROW]
            layouts = [build(problem, ladder, blocks, slots, way) for way in ways]
        times = [None if layout is None else objective_ns(problem, layout) for layout in layouts]
        found = [(time_ns, k) for k, time_ns in enumerate(times) if time_ns is not None]
        improved = bool(found) and (best is None or min(found)[0] < best_ns)
        if improved:
            best_ns, k = min(found)
            best = layouts[k]
        evened |= even
        misses += best is not None and not improved
        # Counts at which only the tight packing fits say little about the next one.
        if misses >= ((1 if few_ways else 2) if evened else 8) or (best is not None and best_ns <= enough):
            break
        if even and few_ways:
            homeless = {way.height for way, time_ns in zip(ways, times, strict=True) if time_ns is None}
            promising = _promising(heights, ways[min(found)[1]].height, homeless)
    return best


def _promising(heights: tuple[float, ...], best: float, homeless: set[float]) -> tuple[float, ...]:
    """Heights for the next number of slots: the best one, its neighbours, and those that found no room."""
    at = heights.index(best)
    return tuple(h for k, h in enumerate(heights) if abs(k - at) <= 1 or h in homeless)


def slot_counts(problem: Problem) -> Iterator[int]:
    """Numbers of slots to try: from the fewest that hold the tokens upwards, or the one that is asked for."""
    if problem.micro_batches is not None:
        yield problem.micro_batches
        return
    least = max(1, -(-int(problem.num_tokens.sum()) // int(problem.max_tokens.sum())))
    slots = least
    while slots <= max(len(problem), 1) + least:
        yield slots
        # A pipeline wants many short micro-batches; otherwise the first counts that fit are the best.
        slots += 1 if problem.topology.pipeline_stages == 1 else max(1, slots // 4)


def build(problem: Problem, ladder: Ladder, blocks: Blocks, slots: int, way: Way) -> Layout | None:
    """A layout of that many slots, or None where a sample finds no room."""
    mean = ladder.lower_bound_ns / (slots + problem.topology.pipeline_stages - 1)
    ranges = ladder.clamped_ranges(problem, min(way.height * mean, 2.0**60))
    count = int(ranges[0])
    taken = np.zeros((slots, problem.ranks), np.bool_)
    heights = np.full(slots, int(mean))
    batch_of, slot, block, free, cost = kernels.shelve(
        ranges, problem.num_tokens, ladder.time_ns, ladder.fixed_ns, ladder.degrees, blocks.starts,
        blocks.bounds, blocks.room, heights, taken, 512,
    )  # fmt: skip
    if batch_of.size < count:
        return None
    samples, rest = np.arange(count), np.arange(count, len(problem))
    if way.riders and slot.size and rest.size:
        samples, batch_of, rest = _with_riders(
            problem, ladder, blocks, samples, batch_of, rest, block, free, cost, heights[slot]
        )
    heights[:] = 0
    np.maximum.at(heights, slot, cost)
    return _fill_rest(
        problem, ladder, blocks, samples, batch_of, rest, slot, block, taken, heights, way.tight
    )


def _with_riders(
    problem: Problem, ladder: Ladder, blocks: Blocks, samples: Ints, batch_of: Ints, rest: Ints, block: Ints,
    free: Ints, cost: Ints, end: Ints,
) -> tuple[Ints, Ints, Ints]:  # fmt: skip
    """Fill wide groups that are below their slot's height with other samples: that time is free.

    Returns (samples in wide groups, their micro-batches, the samples that are left). Updates ``cost``.
    """
    level = np.searchsorted(blocks.bounds, block, side="right") - 1
    short = int(problem.first_too_short()[np.unique(level)].min())
    candidates = rest[rest < short]
    # Tallest gaps first: they take the longest samples, which are the densest.
    by_gap = np.argsort(cost - end, kind="stable")
    order = np.arange(by_gap.size)
    waiting = cost[by_gap]
    riding = ride(
        problem.num_tokens[candidates],
        problem.work_ns_of(ladder.degrees.tolist(), candidates),
        level[by_gap], blocks.degree[block[by_gap]], free[by_gap], end[by_gap], order, order + 1,
        blocks.pace[block[by_gap]], SPEED_UNIT, waiting,
    )  # fmt: skip
    cost[by_gap] = waiting
    rides = riding >= 0
    left = np.ones(len(problem), np.bool_)
    left[samples] = False
    left[candidates[rides]] = False
    return (
        np.concatenate([samples, candidates[rides]]),
        np.concatenate([batch_of, by_gap[riding[rides]]]),
        np.flatnonzero(left),
    )


def _fill_rest(
    problem: Problem, ladder: Ladder, blocks: Blocks, samples: Ints, wide_of: Ints, rest: Ints,
    wide_slot: Ints, wide_block: Ints, taken: NDArray[np.bool_], heights: Ints, tight: bool,
) -> Layout | None:  # fmt: skip
    """Fill a micro-batch for each free group of the smallest degree, and deal them."""
    slots, base, fixed = heights.size, int(ladder.degrees[0]), int(ladder.fixed_ns[0])
    starts = blocks.starts[: blocks.bounds[1]]
    used = taken[:, starts] if base == 1 else taken[:, starts[:, None] + np.arange(base)].any(axis=2)
    free = np.logical_not(used)
    tallest_first = np.argsort(-heights, kind="stable")
    unit_slot, unit_block = np.nonzero(free[tallest_first])
    work = ladder.base_ns[rest]
    tokens = padded(problem.num_tokens[rest], base)
    units = unit_slot.size
    if work.size and not units:
        return None
    slot_units = np.searchsorted(unit_slot, np.arange(slots + 1))
    heights = _common_height(heights[tallest_first], slot_units, work, fixed)
    pace, room = blocks.pace[unit_block], blocks.room[unit_block]
    if tight:
        unit_of = _pack(tokens, room)
    else:
        unit_of = _fill(work, tokens, heights[unit_slot] - fixed, pace, room)
    if unit_of is None:
        return None
    cost = np.bincount(unit_of, weights=work, minlength=units).astype(np.int64)
    cost += fixed * (np.bincount(unit_of, minlength=units) > 0)
    if np.all(pace == pace[:1]) and np.all(room == room[:1]):
        # Finished packs in falling order over the slots in falling order of height.
        by_cost = np.argsort(-cost, kind="stable")
        place_of = np.empty(units, np.int64)
        load = np.zeros(problem.ranks, np.int64)
        place_of[by_cost] = kernels.deal(cost[by_cost], slot_units, starts[unit_block], base, load)
        unit_of = place_of[unit_of]
    kept = np.flatnonzero(np.bincount(unit_of, minlength=units) > 0)
    number = np.full(units, -1, np.int64)
    number[kept] = np.arange(kept.size)
    batch_of = np.empty(len(problem), np.int64)
    batch_of[samples] = wide_of
    batch_of[rest] = wide_slot.size + number[unit_of]
    slot = np.concatenate([wide_slot, tallest_first[unit_slot[kept]]])
    _, slot = np.unique(slot, return_inverse=True)
    block = np.concatenate([wide_block, unit_block[kept]])
    return layout_of(batch_of, blocks.starts[block], blocks.degree[block], slot=slot.astype(np.int64))


def _fill(work: Ints, tokens: Ints, target: Ints, pace: Ints, room: Ints) -> Ints | None:
    """[S] unit of each sample, near each unit's ``target`` nanoseconds; None where they do not fit."""
    units = room.size
    if work.size == 0:
        return np.zeros(0, np.int64)
    sums = np.cumsum(work)
    unit_of: Ints
    unit_of, _ = fill(
        work, tokens, (target * (SPEED_UNIT / pace)).astype(np.int64), room.copy(), np.arange(units + 1),
        room.copy(), pace, int(np.searchsorted(sums, DENSE * sums[-1])), max(1, (units - 1).bit_length()),
    )  # fmt: skip
    return unit_of if unit_of.min() >= 0 else None


def _pack(tokens: Ints, room: Ints) -> Ints | None:
    """[S] unit of each sample, packed tightly; None where the units are too few."""
    unit_of: Ints
    if np.any(room != room[:1]):
        unit_of = tightest_fit(tokens, room.copy())
        return unit_of if unit_of.min(initial=0) >= 0 else None
    if tokens.size and (room.size == 0 or tokens.max() > room[0]):
        return None  # the ranks with more room are taken by wide groups
    packed, bounds, _ = first_fit(tokens, np.arange(tokens.size), np.array([0, tokens.size]), room[:1])
    if bounds.size - 1 > room.size:
        return None
    unit_of = np.empty(tokens.size, np.int64)
    unit_of[packed] = np.repeat(np.arange(bounds.size - 1), np.diff(bounds))
    return unit_of


def _common_height(heights: Ints, slot_units: Ints, work: Ints, fixed: int) -> Ints:
    """[slots] height of each slot: at least its wide groups', its first long sample's, and a common level.

    The level is the least at which the slots hold the work, were they filled to the top.
    """
    first = slot_units[:-1]
    seed = np.zeros(first.size, np.int64)
    if work.size:
        seed = np.where(first < work.size, work[np.minimum(first, work.size - 1)] + fixed, 0)
    floor: Ints = np.maximum(heights, seed)
    total = int(work.sum())
    most = max(int(floor.max(initial=0)), total + fixed) + 1
    level: Ints = np.maximum(floor, kernels.common_level(floor, np.diff(slot_units), total, fixed, most))
    return level
