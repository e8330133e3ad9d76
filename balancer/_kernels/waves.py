"""Slots whose micro-batches take the same time."""

from __future__ import annotations

import numpy as np

from packing._jit import kernel


@kernel
def pack_within(tokens, time, room, height, window):
    """[S] bin of each sample and their number: first fit under ``room`` tokens and ``height`` nanoseconds.

    A sample above the height gets a bin of its own. Only the last ``window`` bins are asked.
    """
    bins = np.empty(tokens.size, np.int64)
    left = np.empty(tokens.size, np.int64)
    load = np.empty(tokens.size, np.int64)
    used = 0
    for i in range(tokens.size):
        found = -1
        for b in range(max(0, used - window), used):
            if left[b] >= tokens[i] and load[b] + time[i] <= height:
                found = b
                break
        if found < 0:
            found = used
            left[found] = room
            load[found] = 0
            used += 1
        bins[i] = found
        left[found] -= tokens[i]
        load[found] += time[i]
    return bins, used


@kernel
def shelve(cost, degree, need, allowed, starts, bounds, level, room, taken, height):
    """[M] (slot, block) of wide micro-batches, widest first and longest first within a degree; -1: no room.

    Each goes where the slot grows least. need: tokens; level: [M] index of the degree. Groups are laid from
    rank 0 up, so that a slot's free ranks stay together. Updates ``taken`` [slots, ranks] and ``height``.
    """
    slots = height.size
    cursor = np.zeros(slots, np.int64)
    slot_of = np.full(cost.size, -1, np.int64)
    block_of = np.full(cost.size, -1, np.int64)
    for m in range(cost.size):
        first, last = bounds[level[m]], bounds[level[m] + 1]
        best = -1
        best_block = -1
        growth = np.int64(0)
        for k in range(slots):
            grows = max(np.int64(0), cost[m] - height[k])
            if best >= 0 and grows >= growth:
                continue
            block = first + np.searchsorted(starts[first:last], cursor[k])
            while block < last and room[block] < need[m]:
                block += 1
            if block < last:
                best = k
                best_block = block
                growth = grows
                if grows == 0:
                    break
        if best < 0:
            return slot_of, block_of
        slot_of[m] = best
        block_of[m] = best_block
        height[best] = max(height[best], cost[m])
        cursor[best] = starts[best_block] + degree[m]
        taken[best, starts[best_block] : starts[best_block] + degree[m]] = True
    return slot_of, block_of


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
        time = cost[m] if slow == unit else (cost[m] * slow + unit - 1) // unit
        for r in range(lo, hi):
            free[r] = begin + time
    return free
