"""Twins of `balancer._kernels.slots`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from balancer.reference import first_fit
from balancer.reference.fill import dense_count, fill
from balancer.reference.riders import at_pace, padded, ride

Ints = Sequence[int]
Unit = tuple[int, int]
"""(slot, block) that a micro-batch of the smallest degree may take."""


def fill_slots(
    tokens: Ints,
    time: Sequence[Ints],
    fixed: Ints,
    degrees: Ints,
    starts: Ints,
    bounds: Ints,
    room: Ints,
    pace: Ints,
    unit: int,
    wide_of: Ints,
    wide_slot: Ints,
    wide_block: Ints,
    wide_free: Ints,
    wide_cost: Ints,
    wide_height: Ints,
    taken: Sequence[Sequence[bool]],
    short: Ints,
    riders: bool,
    tight: bool,
    dense: float,
) -> tuple[list[int], list[int], list[int]]:
    """([S] micro-batch of each sample, [M] slot and [M] block of each); empty lists if one has no room."""
    slots = range(len(taken))
    wide = range(len(wide_slot))
    batch_of = [*wide_of, *[-1] * (len(tokens) - len(wide_of))]
    cost = list(wide_cost)
    if riders:
        level = [max(j for j in range(len(degrees)) if bounds[j] <= block) for block in wide_block]
        able = range(len(wide_of), min([short[j] for j in level], default=0))
        end = [wide_height[slot] for slot in wide_slot]
        # The micro-batches with the most time before their slots' ends first; each has a load of its own.
        by_gap = sorted(wide, key=lambda m: cost[m] - end[m])
        riding, loads = ride(
            [tokens[i] for i in able],
            [[row[i] for i in able] for row in time],
            [level[m] for m in by_gap],
            [degrees[level[m]] for m in by_gap],
            [wide_free[m] for m in by_gap],
            [end[m] for m in by_gap],
            wide,
            [k + 1 for k in wide],
            [pace[wide_block[m]] for m in by_gap],
            unit,
            [cost[m] for m in by_gap],
        )
        for i, k in zip(able, riding, strict=True):
            batch_of[i] = by_gap[k] if k >= 0 else -1
        for m, load in zip(by_gap, loads, strict=True):
            cost[m] = load
    height = [max((cost[m] for m in wide if wide_slot[m] == k), default=0) for k in slots]
    tallest = sorted(slots, key=lambda k: -height[k])
    units = [
        (k, b)
        for k in tallest
        for b in range(bounds[1])
        if not any(taken[k][starts[b] : starts[b] + degrees[0]])
    ]
    rest = [i for i in range(len(tokens)) if batch_of[i] < 0]
    work = [time[0][i] for i in rest]
    need = [padded(tokens[i], degrees[0]) for i in rest]
    rooms, paces = [room[b] for _, b in units], [pace[b] for _, b in units]
    if tight:
        unit_of = pack(need, rooms)
    else:
        free = [sum(k == slot for slot, _ in units) for k in slots]
        floor = floors(height, tallest, free, work, fixed[0])
        heights = [floor[k] for k, _ in units]
        target = [
            nominal if slow == unit else int(min(nominal * (unit / slow), 2.0**61))
            for nominal, slow in zip((h - fixed[0] for h in heights), paces, strict=True)
        ]
        places, _, _ = fill(
            work, need, target, rooms, [[free] for free in rooms], paces, dense_count(work, dense)
        )
        unit_of = [-1 if place is None else place[0] for place in places]
    if -1 in unit_of:
        return [], [], []
    if len(set(rooms)) <= 1 and len(set(paces)) <= 1:
        unit_of = deal_out(unit_of, work, units, fixed[0], [starts[b] for _, b in units])
    used = sorted(set(unit_of))
    for i, u in zip(rest, unit_of, strict=True):
        batch_of[i] = len(wide) + used.index(u)
    slot = [*wide_slot, *(units[u][0] for u in used)]
    numbers = sorted(set(slot))
    return batch_of, [numbers.index(k) for k in slot], [*wide_block, *(units[u][1] for u in used)]


def floors(height: Ints, tallest: Ints, free: Ints, work: Ints, fixed: int) -> list[int]:
    """[slots] nanoseconds that the micro-batches of each slot may take.

    At least as much as its wide groups, as the first sample that finds no unit in taller slots when each
    takes one, and as the least level at which the slots' free units hold all work.
    """
    floor = list(height)
    before = 0
    for k in tallest:
        if before < len(work):
            floor[k] = max(floor[k], work[before] + fixed)
        before += free[k]

    def held(level: int) -> int:
        return sum(n * (max(least, level) - fixed) for n, least in zip(free, floor, strict=True))

    enough = range(max([*floor, sum(work) + fixed]) + 1)
    level = bisect_left(enough, sum(work), key=held)
    return [max(least, level) for least in floor]


def pack(need: Ints, room: Ints) -> list[int]:
    """[S] unit of each sample, -1 where there is none: first fit, or the tightest if the units are unlike."""
    if len(set(room)) <= 1:
        units = [u if u < len(room) else -1 for u in first_fit(need, max(room, default=0))]
        return [u if n <= max(room, default=0) else -1 for u, n in zip(units, need, strict=True)]
    left = list(room)
    units = []
    for n in need:
        fitting = [u for u in range(len(left)) if left[u] >= n]
        units.append(min(fitting, key=lambda u: left[u]) if fitting else -1)
        if fitting:
            left[units[-1]] -= n
    return units


def deal_out(unit_of: Ints, work: Ints, units: Sequence[Unit], fixed: int, first_rank: Ints) -> list[int]:
    """[S] new unit of each sample: the longest packs go to the tallest slot, and so on.

    Within a slot the longest goes to the group that has the least load from the slots before.
    """
    packs = [[i for i in range(len(work)) if unit_of[i] == u] for u in range(len(units))]
    cost = [sum(work[i] for i in pack) + fixed if pack else 0 for pack in packs]
    falling = sorted(range(len(packs)), key=lambda u: -cost[u])
    load = dict.fromkeys(first_rank, 0)
    dealt = [-1] * len(work)
    for k in dict.fromkeys(slot for slot, _ in units):
        here = [u for u in range(len(units)) if units[u][0] == k]
        here.sort(key=lambda u: load[first_rank[u]])
        for u in here:
            pack = falling.pop(0)
            load[first_rank[u]] += cost[pack]
            for i in packs[pack]:
                dealt[i] = u
    return dealt


def step_time(
    batch_of: Ints,
    slot: Ints,
    block: Ints,
    starts: Ints,
    degree: Ints,
    level: Ints,
    time: Sequence[Ints],
    fixed: Ints,
    slowness: Ints,
    unit: int,
    meet: bool,
    num_slots: int,
    idle: int,
    later: int,
) -> int:
    """Nanoseconds of the step; ``later`` pipeline stages run the longest micro-batch once more each."""
    ranks = range(len(slowness))
    members = [range(starts[b], starts[b] + degree[b]) for b in block]
    times = []
    for m, b in enumerate(block):
        samples = [i for i in range(len(batch_of)) if batch_of[i] == m]
        nominal = fixed[level[b]] + sum(time[level[b]][i] for i in samples)
        times.append(at_pace(nominal, max(slowness[r] for r in members[m]), unit))
    if meet:
        # Every rank runs something in every slot.
        own = {(slot[m], r): times[m] for m in range(len(block)) for r in members[m]}
        maxima = [
            max(own.get((k, r), at_pace(idle, slowness[r], unit)) for r in ranks) for k in range(num_slots)
        ]
        return sum(maxima) + later * max(maxima, default=0)
    now = [0] * len(ranks)
    for m in sorted(range(len(block)), key=lambda m: slot[m]):
        end = max(now[r] for r in members[m]) + times[m]
        for r in members[m]:
            now[r] = end
    largest = [max((times[m] for m in range(len(block)) if r in members[m]), default=0) for r in ranks]
    return max(now[r] + later * largest[r] for r in ranks)
