"""Slow, obvious twins of the kernels in `balancer._kernels.phases`; tests compare the two."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from balancer.phasing.assembly import Ints

Loads = NDArray[np.float64]


def _place(
    work: Loads,
    tokens: Ints,
    room: Ints,
    order: Ints,
    slow: Loads,
    base: Loads,
    badness: Callable[..., float],
) -> Ints:
    """Items in ``order``, each to the bin with room that ``badness(load, item, bin)`` likes best."""
    load, free = base.copy(), room.copy()
    bin_of: Ints = np.full(tokens.size, -1, np.int64)
    for i in order:
        roomy = [b for b in range(room.size) if free[b] >= tokens[i]]
        if not roomy:
            break
        best = min(roomy, key=lambda b: badness(load, i, b))
        bin_of[i] = best
        free[best] -= tokens[i]
        load[:, best] += work[:, i] * slow[best]
    return bin_of


def spread_vectors(
    work: Loads, tokens: Ints, room: Ints, order: Ints, slow: Loads, base: Loads, scale: Loads
) -> Ints:
    """[N] bin of each item: the least growth of the weighted sum of fourth powers."""

    def growth(load: Loads, i: int, b: int) -> float:
        total = 0.0
        for p in range(len(scale)):
            if scale[p] > 0 and work[p, i] > 0:
                before = load[p, b] / scale[p]
                after = before + work[p, i] * slow[b] / scale[p]
                total += scale[p] * (
                    (after * after) * (after * after) - (before * before) * (before * before)
                )
        return total

    return _place(work, tokens, room, order, slow, base, growth)


def stack_vectors(
    work: Loads, tokens: Ints, room: Ints, order: Ints, phase_of: Ints, slow: Loads, base: Loads
) -> Ints:
    """[N] bin of each item: the least load of its own phase, the item included."""

    def end(load: Loads, i: int, b: int) -> float:
        return float(load[phase_of[i], b] + work[phase_of[i], i] * slow[b])

    return _place(work, tokens, room, order, slow, base, end)


def sum_of_maxima(work: Loads, slow: Loads, base: Loads, floor: Loads, group: Ints, bin_of: Ints) -> float:
    """What `refine_vectors` brings down: the largest load of each phase in each group, added up."""
    load = base.copy()
    for i, b in enumerate(bin_of):
        load[:, b] += work[:, i] * slow[b]
    total = 0.0
    for p in range(work.shape[0]):
        for g in range(floor.shape[1]):
            total += max([floor[p, g], *load[p, group == g]])
    return total


def first_fit_lists(tokens: Ints, offsets: Ints, capacity: int) -> Ints:
    """[N] bin of each item in its list: the first with room."""
    bins: list[int] = []
    for start, stop in pairwise(offsets.tolist()):
        rooms: list[int] = []
        for size in tokens[start:stop].tolist():
            fitting = [b for b, room in enumerate(rooms) if room >= size]
            if not fitting:
                rooms.append(capacity)
            b = fitting[0] if fitting else len(rooms) - 1
            rooms[b] -= size
            bins.append(b)
    return np.array(bins, dtype=np.int64)
