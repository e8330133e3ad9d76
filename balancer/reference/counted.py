"""Twins of `balancer._kernels.counted`. Floats are added one after another, so that the last bit is equal."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from balancer.reference.fill import dense_count, fill

Ints = Sequence[int]


def fill_counted(
    work: Ints,
    tokens: Ints,
    load: Ints,
    pace: Ints,
    room: Ints,
    unit: int,
    fixed: int,
    needed: Ints,
    dense: float,
    patience: float,
) -> tuple[list[int], list[int]]:
    """([S] micro-batch of each sample, [B] unit of each micro-batch). Needs at least one sample.

    Tries the numbers of micro-batches as long as an even division would end before the best found.
    """
    power, busy = 0.0, 0.0
    for nanoseconds, slow in zip(load, pace, strict=True):
        power += unit / slow
        busy += nanoseconds * (unit / slow)
    tried: list[tuple[float, list[int], list[int]]] = []
    skip = 0.0
    for batches in needed:
        even = (busy + sum(work) + float(fixed) * batches) / power
        if tried and even >= min(tried, key=lambda found: found[0])[0]:
            break
        if even < skip:
            continue
        counts = share_counts(load, pace, unit, sum(work), batches, fixed, even)
        tried.append(fill_once(work, tokens, load, pace, room, unit, fixed, counts, even, dense))
        if patience > 0 and len(tried) == 2:
            break
        if patience > 0:
            skip = even + (tried[0][0] - even) / patience
    _, batch_of, unit_of = min(tried, key=lambda found: found[0])
    return batch_of, unit_of


def share_counts(
    load: Ints, pace: Ints, unit: int, work: int, batches: int, fixed: int, end: float
) -> list[int]:
    """[U] micro-batches in proportion to the time until ``end``; the largest remainders are rounded up."""
    mean = work / batches + fixed
    due = [max((end - busy) * (unit / slow) / mean, 0.0) for busy, slow in zip(load, pace, strict=True)]
    total = 0.0
    for share in due:
        total += share
    shares = [share * (batches / max(total, 1e-9)) for share in due]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(load)), key=lambda u: counts[u] - shares[u])
    for u in by_remainder[: max(batches - sum(counts), 0)]:
        counts[u] += 1
    return counts


def fill_once(
    work: Ints,
    tokens: Ints,
    load: Ints,
    pace: Ints,
    room: Ints,
    unit: int,
    fixed: int,
    counts: Ints,
    end: float,
    dense: float,
) -> tuple[float, list[int], list[int]]:
    """(end of the last unit, micro-batch of each sample, unit of each micro-batch)."""
    units = range(len(load))
    speed = [unit / slow for slow in pace]
    target = [int((end - load[u]) * speed[u]) - fixed * counts[u] for u in units]
    budget = [counts[u] * room[u] for u in units]
    bins = [[room[u]] * counts[u] for u in units]
    places, target, _ = fill(work, tokens, target, budget, bins, pace, dense_count(work, dense))
    extra: list[tuple[int, int]] = []
    free: list[int] = []
    found: list[tuple[int, int]] = []
    for i, place in enumerate(places):
        if place is None:
            # An extra micro-batch with room, on the unit with most work due; else a new one on the unit with
            # room that has most time left.
            at = [e for e in range(len(extra)) if free[e] >= tokens[i]]
            if at:
                e = max(at, key=lambda e: target[extra[e][0]])
            else:
                able = [u for u in units if room[u] >= tokens[i]]
                u = max(able, key=lambda u: (target[u] - fixed) / 65536 * pace[u])
                e = len(extra)
                # Numbered after all that were planned.
                extra.append((u, sum(counts) + e))
                free.append(room[u])
                target[u] -= fixed
            free[e] -= tokens[i]
            target[extra[e][0]] -= work[i]
            place = extra[e]
        found.append(place)
    planned = [(u, b) for u in units for b in range(counts[u])]
    used = [place for place in planned + extra if place in set(found)]
    for u, _ in set(planned) - set(used):
        target[u] += fixed
    last = -inf
    for u in units:
        last = max(last, end - target[u] / speed[u])
    return last, [used.index(place) for place in found], [u for u, _ in used]
