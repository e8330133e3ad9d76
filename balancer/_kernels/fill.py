"""Samples into units that have a work target and a token budget.

A unit is a rank with a number of micro-batches, or one micro-batch of a slot. Both constraints bind when
micro-batches are as few as they can be: then what a unit needs is *density*, work per token.
"""

from __future__ import annotations

import numpy as np

from balancer._kernels.heap import heapify, pop, push, sift_down
from packing._jit import kernel


@kernel(inline="always")
def _key(work, tokens, pace, dense, bits, unit):
    """Smallest first: most work left for each token left, or most time left."""
    if dense:
        most = np.int64(1) << (62 - bits)
        rank = -min(work * 64 // max(tokens, 1), most)
    else:
        rank = -((work >> 8) * (pace >> 8))
    return (rank << bits) | unit


@kernel
def fill(work, tokens, target, budget, first_bin, room, pace, dense_until, bits):
    """Deal samples, longest first. Returns (unit [S], bin [S]); -1 where nothing had room.

    The first ``dense_until`` samples go where most work is due for each token left, which gives long (dense)
    samples to units that are short of tokens; the rest go where most time is left, which evens out the ends.
    A unit without room for a sample is parked until samples are short enough: each parks at most once for
    each sample it takes, so the whole is O((S + U) log U). Within a unit the tightest bin is taken.

    target, budget: [U] nanoseconds and tokens due, updated; bins of unit u: ``first_bin[u]:first_bin[u+1]``
    with ``room`` [bins] tokens, updated; pace: [U] 2**16 times slowness.
    """
    units = target.size
    unit_of = np.full(work.size, -1, np.int64)
    bin_of = np.full(work.size, -1, np.int64)
    most_room = np.zeros(units, np.int64)
    for u in range(units):
        for b in range(first_bin[u], first_bin[u + 1]):
            most_room[u] = max(most_room[u], room[b])
    heap = np.empty(units + 1, np.int64)
    parked = np.empty(units + 1, np.int64)
    mask = (np.int64(1) << bits) - 1
    in_heap = 0
    in_parked = 0
    dense = dense_until > 0
    for u in range(units):
        heap[u] = _key(target[u], budget[u], pace[u], dense, bits, u)
    in_heap = units
    heapify(heap, in_heap)
    for i in range(work.size):
        if dense and i >= dense_until:
            dense = False
            for k in range(in_parked):
                heap[in_heap + k] = parked[k]
            in_heap += in_parked
            in_parked = 0
            for k in range(in_heap):
                u = heap[k] & mask
                heap[k] = _key(target[u], budget[u], pace[u], dense, bits, u)
            heapify(heap, in_heap)
        need = tokens[i]
        while in_parked > 0 and most_room[parked[0] & mask] >= need:
            u = pop(parked, in_parked) & mask
            in_parked -= 1
            push(heap, in_heap, _key(target[u], budget[u], pace[u], dense, bits, u))
            in_heap += 1
        while in_heap > 0 and most_room[heap[0] & mask] < need:
            u = pop(heap, in_heap) & mask
            in_heap -= 1
            push(parked, in_parked, ((-most_room[u]) << bits) | u)
            in_parked += 1
        if in_heap == 0:
            continue
        u = heap[0] & mask
        best = -1
        for b in range(first_bin[u], first_bin[u + 1]):
            if room[b] >= need and (best < 0 or room[b] < room[best]):
                best = b
        was = room[best]
        room[best] -= need
        if was == most_room[u]:
            most_room[u] = 0
            for b in range(first_bin[u], first_bin[u + 1]):
                most_room[u] = max(most_room[u], room[b])
        unit_of[i] = u
        bin_of[i] = best
        target[u] -= work[i]
        budget[u] -= need
        heap[0] = _key(target[u], budget[u], pace[u], dense, bits, u)
        sift_down(heap, in_heap)
    return unit_of, bin_of
