"""Slots of equal micro-batches: for ranks that meet in every one, for pipelines, and for fixed counts.

A slot lasts as long as its longest micro-batch, so alike ones belong together. Wide groups come first, each
in the slot that grows least by it; the height to which all slots must be filled follows from the work that
is left; then one micro-batch for each free group of the smallest degree is filled up to its slot's height.
At last the finished packs are sorted and dealt to the slots, tallest slot first, which can only help.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from balancer._kernels import waves as kernels
from balancer._kernels.fill import fill
from balancer._kernels.place import first_fit
from balancer.planning.blocks import Blocks, make_blocks
from balancer.planning.ladder import Ladder, ladder_of
from balancer.planning.layout import Layout, layout_of, objective_ns
from balancer.planning.problem import Ints, Problem, padded

HEIGHTS = (1.0, 1.15, 1.4, 2.0)
"""Slot heights at which the degrees of the long samples are chosen, in parts of the mean height."""

DENSE = 0.8
"""Share of the work that is dealt by density before the rest is dealt by time."""


def divide(problem: Problem) -> Layout | None:
    """The best of several numbers of slots and heights; None where a given number holds none that was found."""
    ladder, blocks = ladder_of(problem), make_blocks(problem)
    best: Layout | None = None
    best_ns = 0
    misses = 0
    for slots in slot_counts(problem):
        improved = False
        for height in HEIGHTS[: 1 if ladder.degrees.size == 1 else len(HEIGHTS)]:
            layout = build(problem, ladder, blocks, slots, height)
            if layout is None:
                continue
            time_ns = objective_ns(problem, layout)
            if best is None or time_ns < best_ns:
                best, best_ns, improved = layout, time_ns, True
        if best is not None and not improved:
            misses += 1
            if misses == 2:
                break
    return best


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


def build(problem: Problem, ladder: Ladder, blocks: Blocks, slots: int, height: float) -> Layout | None:
    """A layout of that many slots, or None where a sample finds no room."""
    mean = ladder.lower_bound_ns / (slots + problem.topology.pipeline_stages - 1)
    ranges = ladder.clamped_ranges(problem, height * mean)
    batch_of = np.empty(len(problem), np.int64)
    level, cost, need = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    batches = 0
    for j in range(ladder.degrees.size - 1, 0, -1):
        lo, hi = int(ranges[j]), int(ranges[j - 1])
        if lo == hi:
            continue
        tokens = padded(problem.num_tokens[lo:hi], int(ladder.degrees[j]))
        time = ladder.time_ns[j - 1, lo:hi]
        room = int(blocks.room[blocks.bounds[j] : blocks.bounds[j + 1]].max())
        bins, used = kernels.pack_within(tokens, time, room, int(height * mean) - int(ladder.fixed_ns[j]), 64)
        batch_of[lo:hi] = batches + bins
        batches += used
        level.append(np.full(used, j))
        cost.append(np.bincount(bins, weights=time, minlength=used).astype(np.int64) + ladder.fixed_ns[j])
        need.append(np.bincount(bins, weights=tokens, minlength=used).astype(np.int64))
    wide_level, wide_cost, wide_need = np.concatenate(level), np.concatenate(cost), np.concatenate(need)
    by_cost = np.lexsort((-wide_cost, -wide_level))
    wide_degree = ladder.degrees[wide_level]
    taken = np.zeros((slots, problem.ranks), np.bool_)
    heights = np.zeros(slots, np.int64)
    slot_sorted, block_sorted = kernels.shelve(
        wide_cost[by_cost], wide_degree[by_cost], wide_need[by_cost], wide_need, blocks.starts, blocks.bounds,
        wide_level[by_cost], blocks.room, taken, heights,
    )  # fmt: skip
    if batches and slot_sorted[-1] < 0:
        return None
    wide_slot, wide_block = np.empty(batches, np.int64), np.empty(batches, np.int64)
    wide_slot[by_cost], wide_block[by_cost] = slot_sorted, block_sorted
    return _fill_rest(
        problem, ladder, blocks, int(ranges[0]), batch_of, wide_slot, wide_block, taken, heights
    )


def _fill_rest(
    problem: Problem,
    ladder: Ladder,
    blocks: Blocks,
    wide: int,
    batch_of: Ints,
    wide_slot: Ints,
    wide_block: Ints,
    taken: NDArray[np.bool_],
    heights: Ints,
) -> Layout | None:
    """Fill a micro-batch for each free group of the smallest degree, and deal them."""
    slots, base, fixed = heights.size, int(ladder.degrees[0]), int(ladder.fixed_ns[0])
    groups = int(blocks.bounds[1])
    starts = blocks.starts[:groups]
    free = np.logical_not(taken[:, starts[:, None] + np.arange(base)].any(axis=2))
    tallest_first = np.argsort(-heights, kind="stable")
    unit_slot, unit_block = np.nonzero(free[tallest_first])
    work = ladder.base_ns[wide:]
    tokens = padded(problem.num_tokens[wide:], base)
    units = unit_slot.size
    if work.size and not units:
        return None
    slot_units = np.searchsorted(unit_slot, np.arange(slots + 1))
    target_height = _common_height(heights[tallest_first], slot_units, work, fixed)
    bits = max(1, (units - 1).bit_length())
    pace = blocks.pace[unit_block]
    sums = np.cumsum(work)
    dense_until = int(np.searchsorted(sums, DENSE * sums[-1])) if work.size else 0
    target = ((target_height[unit_slot]) * (65536 / pace)).astype(np.int64) - fixed
    room = blocks.room[unit_block]
    unit_of, _ = fill(
        work, tokens, target, room.copy(), np.arange(units + 1), room.copy(), pace, dense_until, bits
    )
    if work.size and unit_of.min() < 0:
        # Even work left too little room somewhere: pack as tightly as first fit does.
        packed, bounds, _ = first_fit(
            tokens, np.arange(work.size), np.array([0, work.size]), room.min(keepdims=True)
        )
        if bounds.size - 1 > units:
            return None
        unit_of[packed] = np.repeat(np.arange(bounds.size - 1), np.diff(bounds))
    cost = np.bincount(unit_of, weights=work, minlength=units).astype(np.int64)
    used = np.bincount(unit_of, minlength=units) > 0
    cost += fixed * used
    equal = bool(np.all(pace == pace[:1]) and np.all(room == room[:1]))
    place_of = np.arange(units)
    if equal:
        # Finished packs in falling order over the slots in falling order of height.
        by_cost = np.argsort(-cost, kind="stable")
        load = np.zeros(problem.ranks, np.int64)
        dealt = kernels.deal(cost[by_cost], slot_units, starts[unit_block], base, load)
        place_of[by_cost] = dealt
    unit_of = place_of[unit_of]
    kept = np.flatnonzero(np.bincount(unit_of, minlength=units) > 0)
    number = np.full(units, -1, np.int64)
    number[kept] = np.arange(kept.size)
    batch_of[wide:] = wide_slot.size + number[unit_of]
    slot = np.concatenate([wide_slot, tallest_first[unit_slot[kept]]])
    _, slot = np.unique(slot, return_inverse=True)
    block = np.concatenate([wide_block, unit_block[kept]])
    return layout_of(batch_of, blocks.starts[block], blocks.degree[block], slot=slot.astype(np.int64))


def _common_height(heights: Ints, slot_units: Ints, work: Ints, fixed: int) -> Ints:
    """[slots] height of each slot: at least its wide groups', its first long sample's, and a common level.

    The level is the least at which the slots hold the work, were they filled to the top.
    """
    first = slot_units[:-1]
    seed = (
        np.where(first < work.size, work[np.minimum(first, max(work.size - 1, 0))] + fixed, 0)
        if work.size
        else first * 0
    )
    floor = np.maximum(heights, seed)
    units = np.diff(slot_units)
    total = int(work.sum())
    low, high = 0, max(int(floor.max(initial=0)), total + fixed) + 1
    while low < high:
        level = (low + high) // 2
        room = float((units * (np.maximum(floor, level) - fixed)).sum())
        if room >= total:
            high = level
        else:
            low = level + 1
    return np.maximum(floor, low)
