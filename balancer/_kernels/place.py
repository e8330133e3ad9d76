"""Samples onto ranks and into micro-batches."""

from __future__ import annotations

import numpy as np

from balancer._kernels.heap import heapify, sift_down
from balancer._kernels.pace import at_pace
from packing._jit import kernel


@kernel
def least_loaded(work, load, rank_bits):
    """[S] rank of each sample: the one with the least load, ties to the lowest rank. Updates ``load`` [R].

    Needs work sorted by falling size for the LPT guarantee, and (sum of all loads) << rank_bits < 2**63.
    """
    ranks = load.size
    rank_of = np.empty(work.size, np.int32)
    heap = np.empty(ranks, np.int64)
    for r in range(ranks):
        heap[r] = (load[r] << rank_bits) | r
    heapify(heap, ranks)
    mask = (1 << rank_bits) - 1
    for i in range(work.size):
        rank_of[i] = heap[0] & mask
        heap[0] += work[i] << rank_bits
        sift_down(heap, ranks)
    for h in range(ranks):
        load[heap[h] & mask] = heap[h] >> rank_bits
    return rank_of


@kernel
def first_fit(tokens, order, offsets, capacity):
    """Cut each list into bins, first fit. Returns (order [S], bounds of bins [B + 1], list of each bin [B]).

    tokens: [samples]; order: samples, list after list; offsets: [G + 1]; capacity: [G]. The samples of a bin
    keep their order. A tournament tree over the bins' room finds the first that fits in O(log bins).
    """
    groups = offsets.size - 1
    grouped = np.empty(order.size, np.int64)
    bounds = np.empty(order.size + 1, np.int64)
    list_of = np.empty(order.size, np.int64)
    bounds[0] = 0
    found = 0
    tree = np.empty(64, np.int64)
    start = np.empty(64, np.int64)
    bins = np.empty(64, np.int64)
    for g in range(groups):
        lo = offsets[g]
        hi = offsets[g + 1]
        if lo == hi:
            continue
        room = capacity[g]
        total = np.int64(0)
        least = tokens[order[lo]]
        for i in range(lo, hi):
            total += tokens[order[i]]
            least = min(least, tokens[order[i]])
        if 2 * least > room:
            # One bin each: a third of the time of 25,000 samples of half a group.
            for i in range(lo, hi):
                grouped[i] = order[i]
                bounds[found + 1] = i + 1
                list_of[found] = g
                found += 1
            continue
        # Any two neighbouring bins of a first fit together exceed the capacity.
        most = min(hi - lo, 2 * (total // room) + 2)
        leaves = 1
        while leaves < most:
            leaves *= 2
        if tree.size < 2 * leaves:
            tree = np.empty(2 * leaves, np.int64)
            start = np.empty(2 * leaves, np.int64)
        if bins.size < hi - lo:
            bins = np.empty(2 * (hi - lo), np.int64)
        for node in range(2 * leaves):
            tree[node] = room
        for b in range(leaves + 1):
            start[b] = 0
        used = 0
        # Few bins: looking at one after the other from the first open one is twice as fast as the tree.
        linear = most <= 48
        open_from = 0
        for i in range(lo, hi):
            need = tokens[order[i]]
            if linear:
                b = open_from
                while tree[b] < need:
                    b += 1
                bins[i - lo] = b
                start[b + 1] += 1
                used = max(used, b + 1)
                tree[b] -= need
                while open_from < leaves and tree[open_from] < least:
                    open_from += 1
                continue
            node = 1
            while node < leaves:
                node *= 2
                if tree[node] < need:
                    node += 1
            b = node - leaves
            bins[i - lo] = b
            start[b + 1] += 1
            used = max(used, b + 1)
            tree[node] -= need
            node //= 2
            while node >= 1:
                larger = max(tree[2 * node], tree[2 * node + 1])
                if tree[node] == larger:
                    break
                tree[node] = larger
                node //= 2
        start[0] = lo
        for b in range(used):
            start[b + 1] += start[b]
            bounds[found + 1] = start[b + 1]
            list_of[found] = g
            found += 1
        for i in range(lo, hi):
            b = bins[i - lo]
            grouped[start[b]] = order[i]
            start[b] += 1
    return grouped, bounds[: found + 1].copy(), list_of[:found].copy()


@kernel
def least_finish(work, tokens, load, pace, room, unit):
    """[S] unit on which each sample ends first, for units of unlike pace or room; O(S * U).

    Some unit must have ``room`` [U] for each sample. Updates ``load`` [U].
    """
    unit_of = np.empty(work.size, np.int64)
    for i in range(work.size):
        best = -1
        best_end = np.int64(0)
        for u in range(load.size):
            if room[u] < tokens[i]:
                continue
            end = load[u] + at_pace(work[i], pace[u], unit)
            if best < 0 or end < best_end:
                best = u
                best_end = end
        unit_of[i] = best
        load[best] = best_end
    return unit_of


@kernel
def tightest_fit(tokens, room):
    """[S] unit with the least room that holds each sample, -1 where none does; O(S * U).

    Updates ``room`` [U].
    """
    unit_of = np.full(tokens.size, -1, np.int64)
    for i in range(tokens.size):
        best = -1
        for u in range(room.size):
            if room[u] >= tokens[i] and (best < 0 or room[u] < room[best]):
                best = u
        if best >= 0:
            unit_of[i] = best
            room[best] -= tokens[i]
    return unit_of


@kernel
def spill(left, work, tokens, target, pace, room, fixed, bins):
    """Open micro-batches beyond the plan for the samples ``left``, on the units with most time left.

    Returns ([left] bin of each, numbered from ``bins``, unit of each new bin). Updates ``target`` [U].
    """
    bin_of = np.empty(left.size, np.int64)
    unit_of = np.empty(left.size, np.int64)
    free = np.empty(left.size, np.int64)
    extras = 0
    for k in range(left.size):
        i = left[k]
        found = -1
        for e in range(extras):
            if free[e] >= tokens[i] and (found < 0 or target[unit_of[e]] > target[unit_of[found]]):
                found = e
        if found < 0:
            best = -1
            for u in range(target.size):
                if room[u] >= tokens[i] and (
                    best < 0
                    or (target[u] - fixed) / 65536 * pace[u] > (target[best] - fixed) / 65536 * pace[best]
                ):
                    best = u
            found = extras
            unit_of[found] = best
            free[found] = room[best]
            target[best] -= fixed
            extras += 1
        bin_of[k] = bins + found
        free[found] -= tokens[i]
        target[unit_of[found]] -= work[i]
    return bin_of, unit_of[:extras].copy()


@kernel
def next_fit_padded(tokens, order, offsets, capacity):
    """Cut each list into bins in its order, where every sample counts as the longest of its bin.

    Arguments and result as of `first_fit`.
    """
    bounds = np.empty(order.size + 1, np.int64)
    list_of = np.empty(order.size, np.int64)
    bounds[0] = 0
    found = 0
    for g in range(offsets.size - 1):
        count = np.int64(0)
        longest = np.int64(0)
        for i in range(offsets[g], offsets[g + 1]):
            longest = max(longest, tokens[order[i]])
            count += 1
            if count > 1 and count * longest > capacity[g]:
                bounds[found + 1] = i
                list_of[found] = g
                found += 1
                count = 1
                longest = tokens[order[i]]
        if count > 0:
            bounds[found + 1] = offsets[g + 1]
            list_of[found] = g
            found += 1
    return order, bounds[: found + 1].copy(), list_of[:found].copy()
