"""What is left after the wide groups, filled into their slots; and what the step then takes."""

from __future__ import annotations

import numpy as np

from balancer._kernels.fill import fill
from balancer._kernels.order import group_by
from balancer._kernels.place import first_fit, tightest_fit
from balancer._kernels.ride import ride
from balancer._kernels.sums import rank_sums, slot_maxima
from balancer._kernels.waves import common_level, deal, finish_times
from packing._jit import kernel


@kernel
def fill_slots(
    tokens, time, fixed, degrees, starts, bounds, room, pace, unit, wide_of, wide_slot, wide_block, wide_free,
    wide_cost, wide_height, taken, short, riders, tight, dense,
):  # fmt: skip
    """([S] micro-batch of each sample, [M] slot and [M] block of each micro-batch); empty if one has no room.

    Samples ``0..len(wide_of) - 1`` stand in wide micro-batches [W], as `waves.shelve` left them; the others
    ride in those that end before their slot, if ``riders``, or fill one micro-batch for each free group of
    the smallest degree. time: [D, S] nanoseconds of each sample at each degree; short: [D] first sample too
    short for it; dense: share of the work that is dealt by density; tight: whether tokens alone count.
    """
    samples, count, wide = tokens.size, wide_of.size, wide_slot.size
    slots, base = taken.shape[0], degrees[0]
    nowhere = np.empty(0, np.int64)
    batch_of = np.full(samples, -1, np.int64)
    batch_of[:count] = wide_of
    cost = wide_cost.copy()
    if riders and wide > 0 and samples > count:
        _board(
            tokens, time, degrees, bounds, pace, unit, count, wide_slot, wide_block, wide_free, wide_height,
            short, cost, batch_of,
        )  # fmt: skip
    rest = count + np.flatnonzero(batch_of[count:] < 0)
    height = np.zeros(slots, np.int64)
    for m in range(wide):
        height[wide_slot[m]] = max(height[wide_slot[m]], cost[m])
    tallest = np.argsort(-height, kind="mergesort")
    unit_slot, unit_block, slot_units = _free_units(taken, starts[: bounds[1]], base, tallest)
    units = unit_slot.size
    if rest.size > 0 and units == 0:
        return nowhere, nowhere, nowhere
    work = np.empty(rest.size, np.int64)
    need = np.empty(rest.size, np.int64)
    pieces = 2 * base if base > 1 else 1
    for i in range(rest.size):
        work[i] = time[0, rest[i]]
        need[i] = (tokens[rest[i]] + pieces - 1) // pieces * pieces
    unit_room, unit_pace = room[unit_block], pace[unit_block]
    if rest.size == 0:
        unit_of = nowhere
    elif tight:
        unit_of = _pack(need, unit_room)
    else:
        target = _targets(height[tallest], slot_units, work, fixed[0], unit_slot, unit_pace, unit)
        unit_of = _deal_evenly(work, need, target, unit_pace, unit_room, dense)
    if unit_of.size < rest.size:
        return nowhere, nowhere, nowhere
    packs = np.zeros(units, np.int64)
    held = np.zeros(units, np.int64)
    for i in range(rest.size):
        packs[unit_of[i]] += work[i]
        held[unit_of[i]] += 1
    for u in range(units):
        if held[u] > 0:
            packs[u] += fixed[0]
    if np.all(unit_pace == unit_pace[:1]) and np.all(unit_room == unit_room[:1]):
        # Finished packs in falling order over the slots in falling order of height.
        by_cost = np.argsort(-packs, kind="mergesort")
        load = np.zeros(taken.shape[1], np.int64)
        placed = deal(packs[by_cost], slot_units, starts[unit_block], base, load)
        place_of = np.empty(units, np.int64)
        place_of[by_cost] = placed
        for i in range(rest.size):
            unit_of[i] = place_of[unit_of[i]]
        held[:] = 0
        for i in range(rest.size):
            held[unit_of[i]] += 1
    number = np.full(units, -1, np.int64)
    batches = wide
    for u in range(units):
        if held[u] > 0:
            number[u] = batches
            batches += 1
    slot = np.empty(batches, np.int64)
    block = np.empty(batches, np.int64)
    slot[:wide] = wide_slot
    block[:wide] = wide_block
    for u in range(units):
        if held[u] > 0:
            slot[number[u]] = tallest[unit_slot[u]]
            block[number[u]] = unit_block[u]
    for i in range(rest.size):
        batch_of[rest[i]] = number[unit_of[i]]
    _close_up(slot, slots)
    return batch_of, slot, block


@kernel
def _board(
    tokens, time, degrees, bounds, pace, unit, count, slot, block, free, height, short, cost, batch_of
):  # fmt: skip
    """Fill wide micro-batches that end before their slot: that time is free. Updates ``cost``, ``batch_of``.

    Tallest gaps first: they take the longest samples, which are the densest.
    """
    wide = slot.size
    level = np.searchsorted(bounds, block, side="right") - 1
    last = tokens.size
    for m in range(wide):
        last = min(last, short[level[m]])
    if last <= count:
        return
    end = height[slot]
    by_gap = np.argsort(cost - end, kind="mergesort")
    order = np.arange(wide)
    waiting = cost[by_gap]
    at = block[by_gap]
    riding = ride(
        tokens[count:last].copy(), time[:, count:last].copy(), level[by_gap], degrees[level[by_gap]],
        free[by_gap], end[by_gap], order, order + 1, pace[at], unit, waiting,
    )  # fmt: skip
    cost[by_gap] = waiting
    for i in range(last - count):
        if riding[i] >= 0:
            batch_of[count + i] = by_gap[riding[i]]


@kernel
def _free_units(taken, starts, base, order):
    """([U] place of the slot in ``order``, [U] block, [slots + 1] bounds) of the free groups."""
    slots = taken.shape[0]
    unit_slot = np.empty(slots * starts.size, np.int64)
    unit_block = np.empty(slots * starts.size, np.int64)
    bounds = np.zeros(slots + 1, np.int64)
    found = 0
    for k in range(slots):
        for b in range(starts.size):
            free = True
            for r in range(starts[b], starts[b] + base):
                free = free and not taken[order[k], r]
            if free:
                unit_slot[found] = k
                unit_block[found] = b
                found += 1
        bounds[k + 1] = found
    return unit_slot[:found].copy(), unit_block[:found].copy(), bounds


@kernel
def _targets(height, slot_units, work, fixed, unit_slot, pace, unit):
    """[U] nominal nanoseconds that each unit shall take: up to its slot's height, fixed cost aside.

    Slots are at least as tall as their wide groups, as the first long sample that stands in them, and as the
    least common level at which they hold the work, were they filled to the top.
    """
    slots = height.size
    floor = height.copy()
    total = np.int64(0)
    for i in range(work.size):
        total += work[i]
    most = total + fixed
    for k in range(slots):
        if slot_units[k] < work.size:
            floor[k] = max(floor[k], work[slot_units[k]] + fixed)
        most = max(most, floor[k])
    level = common_level(floor, np.diff(slot_units), total, fixed, most + 1)
    target = np.empty(unit_slot.size, np.int64)
    for u in range(unit_slot.size):
        nominal = max(floor[unit_slot[u]], level) - fixed
        if pace[u] == unit:
            target[u] = nominal
        else:
            # A rank of a thousand times the speed would pass 64 bits in two years.
            target[u] = np.int64(min(float(nominal) * (unit / pace[u]), 2.0**61))
    return target


@kernel
def _deal_evenly(work, tokens, target, pace, room, dense):
    """[S] unit of each sample, near each unit's target; empty where they do not fit."""
    units = room.size
    bits = 1
    while units - 1 >> bits > 0:
        bits += 1
    sums = np.cumsum(work)
    dense_until = np.searchsorted(sums, dense * sums[sums.size - 1])
    unit_of, _ = fill(
        work, tokens, target, room.copy(), np.arange(units + 1), room.copy(), pace, dense_until, bits
    )
    for i in range(unit_of.size):
        if unit_of[i] < 0:
            return unit_of[:0].copy()
    return unit_of


@kernel
def _pack(tokens, room):
    """[S] unit of each sample, packed tightly; empty where the units are too few."""
    nowhere = np.empty(0, np.int64)
    if np.any(room != room[:1]):
        unit_of = tightest_fit(tokens, room.copy())
        for i in range(unit_of.size):
            if unit_of[i] < 0:
                return nowhere
        return unit_of
    for i in range(tokens.size):
        if tokens[i] > room[0]:
            return nowhere  # the ranks with more room are taken by wide groups
    packed, bins, _ = first_fit(tokens, np.arange(tokens.size), np.array([0, tokens.size]), room[:1].copy())
    if bins.size - 1 > room.size:
        return nowhere
    unit_of = np.empty(tokens.size, np.int64)
    for b in range(bins.size - 1):
        for i in range(bins[b], bins[b + 1]):
            unit_of[packed[i]] = b
    return unit_of


@kernel
def _close_up(slot, slots):
    """Number the used slots without holes, in place."""
    number = np.zeros(slots, np.int64)
    for m in range(slot.size):
        number[slot[m]] = 1
    used = 0
    for k in range(slots):
        if number[k] > 0:
            number[k] = used
            used += 1
    for m in range(slot.size):
        slot[m] = number[slot[m]]


@kernel
def step_time(
    batch_of, slot, block, starts, degree, level, time, fixed, slowness, unit, meet, num_slots, idle, later
):  # fmt: skip
    """Nanoseconds of the step, as `balancer.planning.layout.step_times_ns` counts them.

    level, degree, starts: [N] of the blocks; meet: whether all ranks meet in every slot, of which there are
    ``num_slots``. No time may pass 64 bits.
    """
    cost = np.empty(block.size, np.int64)
    for m in range(block.size):
        cost[m] = fixed[level[block[m]]]
    for i in range(batch_of.size):
        m = batch_of[i]
        cost[m] += time[level[block[m]], i]
    first_rank, ranks = starts[block], degree[block]
    longest = np.int64(0)
    if meet:
        total = np.int64(0)
        maxima = slot_maxima(first_rank, ranks, slot, cost, slowness, unit, num_slots, idle)
        for k in range(maxima.size):
            total += maxima[k]
            longest = max(longest, maxima[k])
        return total + later * longest
    by_slot, _ = group_by(slot, num_slots)
    ends = finish_times(first_rank, ranks, by_slot, cost, slowness, unit)
    _, largest = rank_sums(first_rank, ranks, cost, slowness, unit)
    for r in range(ends.size):
        longest = max(longest, ends[r] + later * largest[r])
    return longest
