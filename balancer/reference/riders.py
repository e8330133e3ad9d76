"""Twins of `balancer._kernels.riders`, and of `balancer._kernels.ride`."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

Ints = Sequence[int]


def padded(tokens: int, degree: int) -> int:
    """Tokens of a sample on a group of that degree: the next multiple of twice the degree."""
    pieces = 2 * degree if degree > 1 else 1
    return -(-tokens // pieces) * pieces


def at_pace(nominal: int, pace: int, unit: int) -> int:
    """Nanoseconds at ``pace`` parts of ``unit``, rounded up."""
    return -(-nominal * pace // unit)


def batches_of(order: Ints, offsets: Ints) -> list[list[int]]:
    """The samples of each micro-batch."""
    return [list(order[offsets[m] : offsets[m + 1]]) for m in range(len(offsets) - 1)]


def costs(order: Ints, offsets: Ints, level: Ints, time: Sequence[Ints], fixed: Ints) -> list[int]:
    """[M] nanoseconds of each micro-batch: its degree's fixed cost and its samples' times."""
    batches = zip(batches_of(order, offsets), level, strict=True)
    return [fixed[j] + sum(time[j - 1][i] for i in batch) for batch, j in batches]


def room_left(order: Ints, offsets: Ints, degree: Ints, room: Ints, tokens: Ints) -> list[int]:
    """[M] tokens that are left when each sample is padded to pieces of a group of two or more ranks."""
    batches = zip(batches_of(order, offsets), degree, room, strict=True)
    return [free - sum(padded(tokens[i], d) for i in batch) for batch, d, free in batches]


def candidates(able: Ints, tokens: Ints, own_room: int, room: int, most: float) -> list[int]:
    """All above half of their own room; of the others one whenever the share passes a whole number."""
    large = [i for i in able if 2 * tokens[i] > own_room]
    others = [i for i in able if 2 * tokens[i] <= own_room]
    share = min(most, room / max(sum(tokens[i] for i in others), 1))
    due = [floor(k * share) for k in range(len(others) + 1)]
    return large + [i for i, before, now in zip(others, due, due[1:], strict=False) if now > before]


def join(
    order: Ints, offsets: Ints, riders: Ints, batch_of: Ints, samples: int
) -> tuple[list[int], list[int], list[int]]:
    """(order, offsets, samples that stand nowhere): each micro-batch's own samples, then its riders."""
    batches = batches_of(order, offsets)
    for rider, m in zip(riders, batch_of, strict=True):
        if m >= 0:
            batches[m].append(rider)
    joined = [i for batch in batches for i in batch]
    ends = [sum(map(len, batches[:m])) for m in range(len(batches) + 1)]
    return joined, ends, sorted(set(range(samples)) - set(joined))


def fair_end(
    load: Ints, pace: Ints, unit: int, rest: Ints, tokens: Ints, base: Ints, degree: int, per_token: float
) -> float:
    """All work, with the fixed cost of its tokens, over all ranks' speed."""
    work, length = sum(base[i] for i in rest) * degree, sum(tokens[i] for i in rest)
    due, power = 0.0, 0.0
    for busy, slow in zip(load, pace, strict=True):
        due += busy * (unit / slow)
        power += unit / slow
    return min((due + work + per_token * length) / power, 2.0**61)


def ride(
    tokens: Ints,
    time: Sequence[Ints],
    level: Ints,
    degree: Ints,
    free: Ints,
    end: Ints,
    first: Ints,
    last: Ints,
    pace: Ints,
    unit: int,
    load: Ints,
) -> tuple[list[int], list[int]]:
    """([C] micro-batch of each candidate, loads): looks at every candidate in turn.

    One that would end too late bars all of more than half its length from that micro-batch.
    """
    batch_of = [-1] * len(tokens)
    loads = list(load)
    for m in range(len(level)):
        if level[m] < 0:
            continue
        members = range(first[m], last[m])
        slow, latest = max(pace[r] for r in members), max(loads[r] for r in members)
        room, added, longest = free[m], 0, tokens[0] if tokens else 0
        for i, length in enumerate(tokens):
            # Groups of one rank count as two pieces here.
            pieces = 2 * degree[m]
            need = -(-length // pieces) * pieces
            if batch_of[i] >= 0 or need > room or length > longest:
                continue
            cost = at_pace(time[level[m]][i], slow, unit)
            if latest + added + cost > end[m]:
                longest = length // 2
                continue
            batch_of[i] = m
            added += cost
            room -= need
        for r in members:
            loads[r] += added
    return batch_of, loads
