"""Samples onto ranks and into micro-batches."""

from __future__ import annotations

import numpy as np

from balancer._kernels.heap import sift_down
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
    heap.sort()
    mask = (1 << rank_bits) - 1
    for i in range(work.size):
        rank_of[i] = heap[0] & mask
        heap[0] += work[i] << rank_bits
        sift_down(heap, ranks)
    for h in range(ranks):
        load[heap[h] & mask] = heap[h] >> rank_bits
    return rank_of


@kernel
def first_fit(tokens, offsets, capacity, bins):
    """Pack each list into bins of its own, first fit. Returns the number of bins of each list, [G].

    tokens: [S] sizes, list after list; offsets: [G + 1]; capacity: [G]. Writes ``bins`` [S], counted from 0
    in each list. A tournament tree over the bins' room finds the first one that fits in O(log bins).
    """
    groups = offsets.size - 1
    used = np.zeros(groups, np.int64)
    tree = np.empty(64, np.int64)
    for g in range(groups):
        lo = offsets[g]
        hi = offsets[g + 1]
        if lo == hi:
            continue
        room = capacity[g]
        total = np.int64(0)
        for i in range(lo, hi):
            total += tokens[i]
        # Any two neighbouring bins of a first fit together exceed the capacity.
        most = min(hi - lo, 2 * (total // room) + 2)
        leaves = 1
        while leaves < most:
            leaves *= 2
        if tree.size < 2 * leaves:
            tree = np.empty(2 * leaves, np.int64)
        tree[: 2 * leaves] = room
        for i in range(lo, hi):
            need = tokens[i]
            node = 1
            while node < leaves:
                node *= 2
                if tree[node] < need:
                    node += 1
            slot = node - leaves
            bins[i] = slot
            if slot >= used[g]:
                used[g] = slot + 1
            tree[node] -= need
            node //= 2
            while node >= 1:
                larger = max(tree[2 * node], tree[2 * node + 1])
                if tree[node] == larger:
                    break
                tree[node] = larger
                node //= 2
    return used


@kernel
def even_packs(work, tokens, packs, capacity, tries):
    """[S] pack of each sample, -1 where none had room: least work first, among packs with room.

    Samples come longest first. The ``tries`` lightest packs are asked; after them any pack that fits is
    taken by first fit, so that the search stays short when light packs are full of tokens.
    """
    pack_of = np.full(work.size, -1, np.int64)
    load = np.zeros(packs, np.int64)
    room = np.full(packs, capacity, np.int64)
    shift = 1
    while (1 << shift) < packs:
        shift += 1
    mask = (1 << shift) - 1
    heap = np.arange(packs).astype(np.int64)
    size = packs
    least = tokens[tokens.size - 1] if tokens.size else 0
    aside = np.empty(tries, np.int64)
    for i in range(work.size):
        count = 0
        found = -1
        while size > 0 and count < tries:
            pack = heap[0] & mask
            if room[pack] >= tokens[i]:
                found = pack
                break
            key = heap[0]
            heap[0] = heap[size - 1]
            size -= 1
            sift_down(heap, size)
            if room[pack] >= least:
                aside[count] = key
                count += 1
        if found >= 0:
            heap[0] += work[i] << shift
            sift_down(heap, size)
        else:
            for pack in range(packs):
                if room[pack] >= tokens[i]:
                    found = pack
                    break
            if found >= 0:
                for h in range(size):
                    if heap[h] & mask == found:
                        heap[h] += work[i] << shift
                        break
                heap[:size].sort()
                for k in range(count):
                    if aside[k] & mask == found:
                        aside[k] += work[i] << shift
        for k in range(count):
            key = aside[k]
            child = size
            while child > 0:
                parent = (child - 1) >> 2
                if heap[parent] <= key:
                    break
                heap[child] = heap[parent]
                child = parent
            heap[child] = key
            size += 1
        if found < 0:
            return pack_of
        pack_of[i] = found
        room[found] -= tokens[i]
        load[found] += work[i]
    return pack_of


@kernel
def least_finish(work, load, pace, unit):
    """[S] unit on which each sample ends first, for units of unlike pace; O(S * U). Updates ``load`` [U]."""
    unit_of = np.empty(work.size, np.int64)
    for i in range(work.size):
        best = 0
        best_end = np.int64(0)
        for u in range(load.size):
            end = load[u] + (work[i] * pace[u] + unit - 1) // unit
            if u == 0 or end < best_end:
                best = u
                best_end = end
        unit_of[i] = best
        load[best] = best_end
    return unit_of


@kernel
def spill(left, work, tokens, target, counts, room, fixed, unit_of, bin_of):
    """Give the samples ``left`` micro-batches more than planned, on the units with most work due."""
    extra_unit = np.empty(left.size, np.int64)
    extra_bin = np.empty(left.size, np.int64)
    extra_room = np.empty(left.size, np.int64)
    extras = 0
    for k in range(left.size):
        i = left[k]
        found = -1
        for e in range(extras):
            if extra_room[e] >= tokens[i] and (
                found < 0 or target[extra_unit[e]] > target[extra_unit[found]]
            ):
                found = e
        if found < 0:
            best = -1
            for u in range(target.size):
                if room[u] >= tokens[i] and (best < 0 or target[u] > target[best]):
                    best = u
            found = extras
            extra_unit[found] = best
            extra_bin[found] = counts[best]
            extra_room[found] = room[best]
            counts[best] += 1
            target[best] -= fixed
            extras += 1
        unit_of[i] = extra_unit[found]
        bin_of[i] = extra_bin[found]
        extra_room[found] -= tokens[i]
        target[extra_unit[found]] -= work[i]
