"""What a division of a step costs."""

from __future__ import annotations

import numpy as np

from balancer._kernels.pace import at_pace
from packing._jit import kernel


@kernel
def latest_unit(unit_of, work, tokens, room, pace, unit, fixed, later):
    """Nanoseconds that the busiest unit computes at least, however its samples are cut into micro-batches.

    work, tokens: [S]; room, pace: [U]; ``later`` stages run its largest micro-batch once more.
    """
    units = room.size
    busy = np.zeros(units)
    longest = np.zeros(units)
    held = np.zeros(units, np.int64)
    for i in range(unit_of.size):
        u = unit_of[i]
        busy[u] += work[i]
        longest[u] = max(longest[u], float(work[i]))
        held[u] += tokens[i]
    latest = 0.0
    for u in range(units):
        batches = (held[u] + room[u] - 1) // room[u]
        if batches > 0:
            nominal = busy[u] + float(fixed) * batches
            latest = max(latest, (nominal + later * (longest[u] + fixed)) / unit * pace[u])
    return latest


@kernel
def by_level(offsets, level, levels):
    """(positions of the samples by level of their micro-batch, [levels + 1] bounds), stable."""
    bounds = np.zeros(levels + 1, np.int64)
    for m in range(level.size):
        bounds[level[m] + 1] += offsets[m + 1] - offsets[m]
    for j in range(levels):
        bounds[j + 1] += bounds[j]
    at = bounds[:levels].copy()
    positions = np.empty(bounds[levels], np.int64)
    for m in range(level.size):
        j = level[m]
        for i in range(offsets[m], offsets[m + 1]):
            positions[at[j]] = i
            at[j] += 1
    return positions, bounds


@kernel
def batch_sums(work, order, offsets, cp_degree, tokens, to_longest):
    """([M] nanoseconds, [M] tokens with padding) of the micro-batches, without their fixed costs.

    work: [S] nanoseconds in layout order; tokens: [S] of each sample; to_longest: whether all samples of a
    micro-batch count as its longest.
    """
    batches = cp_degree.size
    cost = np.zeros(batches, np.int64)
    held = np.zeros(batches, np.int64)
    for m in range(batches):
        pieces = 2 * cp_degree[m] if cp_degree[m] > 1 else 1
        longest, most = np.int64(0), np.int64(0)
        for i in range(offsets[m], offsets[m + 1]):
            need = (tokens[order[i]] + pieces - 1) // pieces * pieces
            cost[m] += work[i]
            held[m] += need
            longest = max(longest, need)
            most = max(most, work[i])
        if to_longest:
            cost[m] = most * (offsets[m + 1] - offsets[m])
            held[m] = longest * (offsets[m + 1] - offsets[m])
    return cost, held


@kernel
def reorder(rows, order, offsets, by_slot):
    """(rows of the samples, offsets) with the micro-batches in the order ``by_slot``."""
    new_order = np.empty(order.size, np.int64)
    new_offsets = np.empty(offsets.size, np.int64)
    new_offsets[0] = 0
    at = 0
    for k in range(by_slot.size):
        m = by_slot[k]
        for i in range(offsets[m], offsets[m + 1]):
            new_order[at] = rows[order[i]]
            at += 1
        new_offsets[k + 1] = at
    return new_order, new_offsets


@kernel
def next_slots(first_rank, cp_degree, ranks):
    """[M] slot of each micro-batch when every rank runs its own in the order given.

    A group starts where its latest member is, so that the slot is equal on all of them.
    """
    batches = first_rank.size
    slot = np.zeros(batches, np.int64)
    free = np.zeros(ranks, np.int64)
    for m in range(batches):
        latest = 0
        for r in range(first_rank[m], first_rank[m] + cp_degree[m]):
            latest = max(latest, free[r])
        slot[m] = latest
        for r in range(first_rank[m], first_rank[m] + cp_degree[m]):
            free[r] = latest + 1
    return slot


@kernel
def rank_sums(first_rank, cp_degree, cost, slowness, unit):
    """(sum, largest) [R] over the micro-batches of each rank; a group goes at its slowest member's pace.

    slowness: [R] nanoseconds that one nominal nanosecond takes, in ``unit`` parts.
    """
    ranks = slowness.size
    total = np.zeros(ranks, np.int64)
    largest = np.zeros(ranks, np.int64)
    for m in range(first_rank.size):
        lo = first_rank[m]
        hi = lo + cp_degree[m]
        pace = slowness[lo]
        for r in range(lo + 1, hi):
            pace = max(pace, slowness[r])
        time = cost[m] if pace == unit else at_pace(cost[m], pace, unit)
        for r in range(lo, hi):
            total[r] += time
            largest[r] = max(largest[r], time)
    return total, largest


@kernel
def slot_maxima(first_rank, cp_degree, slot, cost, slowness, unit, num_slots, idle):
    """[num_slots] time of each slot: its slowest rank, where ranks without work run ``idle`` nanoseconds."""
    ranks = slowness.size
    maxima = np.zeros(num_slots, np.int64)
    busy = np.zeros(num_slots, np.int64)
    slowest = np.int64(unit)
    for r in range(ranks):
        slowest = max(slowest, slowness[r]) if r > 0 else slowness[r]
    for m in range(first_rank.size):
        lo = first_rank[m]
        pace = slowness[lo]
        for r in range(lo + 1, lo + cp_degree[m]):
            pace = max(pace, slowness[r])
        time = cost[m] if pace == unit else at_pace(cost[m], pace, unit)
        maxima[slot[m]] = max(maxima[slot[m]], time)
        busy[slot[m]] += cp_degree[m]
    if idle > 0:
        taken = np.zeros((num_slots, ranks), np.bool_)
        for m in range(first_rank.size):
            taken[slot[m], first_rank[m] : first_rank[m] + cp_degree[m]] = True
        for k in range(num_slots):
            if busy[k] < ranks:
                for r in range(ranks):
                    if not taken[k, r]:
                        maxima[k] = max(maxima[k], at_pace(idle, slowness[r], unit))
    return maxima
