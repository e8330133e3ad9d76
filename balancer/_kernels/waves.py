"""Slots whose micro-batches take the same time."""

from __future__ import annotations

import numpy as np

from balancer._kernels.pace import at_pace
from packing._jit import kernel


@kernel
def shelve(lo, tokens, time, fixed, degrees, starts, bounds, room, height, taken, window):
    """Put the samples of all degrees but the smallest into slots, widest first and longest first.

    A sample joins the micro-batch of its degree that it fills up best without passing its slot's height;
    else it opens a group in the slot that grows least. Groups are laid from rank 0 up, so that a slot's free
    ranks stay together. Only the last ``window`` micro-batches are asked.

    lo: [D] first sample of each degree; height: [slots] nanoseconds, at least what every slot will reach
    anyway, updated; taken: [slots, ranks], updated. Returns (batch [lo[0]] of each sample, then slot, block,
    free tokens and nanoseconds [M] of the micro-batches); the first is short where a sample found no room.
    """
    count = lo[0]
    slots = height.size
    cursor = np.zeros(slots, np.int64)
    batch_of = np.empty(count, np.int64)
    slot_of = np.empty(count, np.int64)
    block_of = np.empty(count, np.int64)
    free = np.empty(count, np.int64)
    cost = np.empty(count, np.int64)
    # Micro-batches of this degree that have room for its shortest sample, in the order they were opened.
    open_at = np.empty(count, np.int64)
    used = 0
    for j in range(degrees.size - 1, 0, -1):
        degree = degrees[j]
        pieces = 2 * degree
        first, last = bounds[j], bounds[j + 1]
        opened_from, opened = 0, 0
        least = (tokens[lo[j - 1] - 1] + pieces - 1) // pieces * pieces if lo[j - 1] > lo[j] else 0
        for i in range(lo[j], lo[j - 1]):
            need = (tokens[i] + pieces - 1) // pieces * pieces
            best = -1
            slack = np.int64(0)
            while opened_from < opened and open_at[opened_from] < used - window:
                opened_from += 1
            for n in range(opened_from, opened):
                m = open_at[n]
                left = height[slot_of[m]] - cost[m] - time[j - 1, i]
                if free[m] >= need and left >= 0 and (best < 0 or left < slack):
                    best = m
                    slack = left
            if best < 0:
                alone = time[j - 1, i] + fixed[j]
                growth = np.int64(0)
                slot = -1
                at = 0
                for k in range(slots):
                    grows = max(np.int64(0), alone - height[k])
                    if slot >= 0 and grows >= growth:
                        continue
                    block = first + np.searchsorted(starts[first:last], cursor[k])
                    while block < last and room[block] < need:
                        block += 1
                    if block < last:
                        slot = k
                        at = block
                        growth = grows
                        if grows == 0:
                            break
                if slot < 0:
                    return batch_of[:i], slot_of[:used], block_of[:used], free[:used], cost[:used]
                best = used
                slot_of[used] = slot
                block_of[used] = at
                free[used] = room[at]
                cost[used] = fixed[j]
                height[slot] = max(height[slot], alone)
                cursor[slot] = starts[at] + degree
                taken[slot, starts[at] : starts[at] + degree] = True
                open_at[opened] = used
                opened += 1
                used += 1
            batch_of[i] = best
            free[best] -= need
            cost[best] += time[j - 1, i]
            if free[best] < least:
                # Full even for the shortest: 5,000 samples of half a group each take a third of the time.
                kept = opened_from
                for n in range(opened_from, opened):
                    if open_at[n] != best:
                        open_at[kept] = open_at[n]
                        kept += 1
                opened = kept
    return batch_of, slot_of[:used], block_of[:used], free[:used], cost[:used]


@kernel
def common_level(floor, units, total, fixed, most):
    """Least level, at most ``most``, at which the slots' units hold ``total`` beside their fixed costs.

    floor: [slots] least height of each; units: [slots] micro-batches that it has room for.
    """
    low, high = np.int64(0), np.int64(most)
    while low < high:
        level = (low + high) // 2
        room = 0.0
        for k in range(floor.size):
            room += float(units[k]) * float(max(floor[k], level) - fixed)
        if room >= total:
            high = level
        else:
            low = level + 1
    return low


@kernel
def deal(cost, slot_units, unit_start, degree, load):
    """[P] unit of each pack: packs come slot after slot; within one the longest to the least loaded rank.

    slot_units: [slots + 1] bounds of the units of each slot; pack p is the p-th unit's at first. Updates
    ``load`` [R].
    """
    unit_of = np.empty(cost.size, np.int64)
    for k in range(slot_units.size - 1):
        lo, hi = slot_units[k], slot_units[k + 1]
        by_load = np.argsort(load[unit_start[lo:hi]], kind="mergesort")
        by_cost = np.argsort(-cost[lo:hi], kind="mergesort")
        for i in range(hi - lo):
            unit_of[lo + by_cost[i]] = lo + by_load[i]
        for i in range(lo, hi):
            start = unit_start[unit_of[i]]
            for r in range(start, start + degree):
                load[r] += cost[i]
    return unit_of


@kernel
def finish_times(first_rank, cp_degree, slot_order, cost, pace, unit):
    """[R] when each rank ends, running its micro-batches in ``slot_order`` and waiting for its groups."""
    free = np.zeros(pace.size, np.int64)
    for m in slot_order:
        lo = first_rank[m]
        hi = lo + cp_degree[m]
        begin = free[lo]
        slow = pace[lo]
        for r in range(lo + 1, hi):
            begin = max(begin, free[r])
            slow = max(slow, pace[r])
        time = cost[m] if slow == unit else at_pace(cost[m], slow, unit)
        for r in range(lo, hi):
            free[r] = begin + time
    return free
