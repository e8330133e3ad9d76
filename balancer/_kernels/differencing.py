"""Karmarkar-Karp's largest differencing method for k parts, on sparse states."""

from __future__ import annotations

import numpy as np

from balancer._kernels.heap import pop, push
from packing._jit import kernel


@kernel
def largest_differencing(work, parts, bits):
    """[S] part of each sample (Karmarkar and Karp 1982, Korf 2009 for k parts). Needs S >= 1, work falling.

    A state is a partial division: the sums of its parts that are not empty, falling. The two states of the
    largest spread are merged, largest sums with smallest, until one is left. States hold S sums in all, so
    memory is O(S) where lists of k sums a state would take S * k; time is O(S * k) at worst.
    """
    samples = work.size
    capacity = 4 * samples + 4 * parts
    sums = np.empty(capacity, np.int64)
    tail = np.empty(capacity, np.int64)
    head = np.empty(capacity, np.int64)
    follows = np.full(samples, -1, np.int64)
    begin = np.arange(samples)
    length = np.ones(samples, np.int64)
    heap = np.empty(samples + 1, np.int64)
    mask = (np.int64(1) << bits) - 1
    size = 0
    for i in range(samples):
        sums[i] = work[i]
        head[i] = i
        tail[i] = i
        spread = work[i] if parts > 1 else np.int64(0)
        push(heap, size, ((-spread) << bits) | i)
        size += 1
    free = samples
    merged = np.empty(parts, np.int64)
    merged_head = np.empty(parts, np.int64)
    merged_tail = np.empty(parts, np.int64)
    while size > 1:
        a = pop(heap, size) & mask
        size -= 1
        b = pop(heap, size) & mask
        size -= 1
        count_a, count_b = length[a], length[b]
        total = min(parts, count_a + count_b)
        # Part p of a (falling) meets part parts - 1 - p of b; parts beyond a state's length are empty.
        for p in range(total):
            merged[p] = 0
        put = 0
        for p in range(count_a):
            q = parts - 1 - p
            merged[put] = sums[begin[a] + p]
            merged_head[put] = head[begin[a] + p]
            merged_tail[put] = tail[begin[a] + p]
            if q < count_b:
                merged[put] += sums[begin[b] + q]
                follows[merged_tail[put]] = head[begin[b] + q]
                merged_tail[put] = tail[begin[b] + q]
            put += 1
        for q in range(min(count_b, parts - count_a)):
            merged[put] = sums[begin[b] + q]
            merged_head[put] = head[begin[b] + q]
            merged_tail[put] = tail[begin[b] + q]
            put += 1
        if free + put > capacity:
            # Move the live states to the front; they are in the order of their begin after sorting.
            live = np.empty(size, np.int64)
            for h in range(size):
                live[h] = heap[h] & mask
            starts = np.empty(size, np.int64)
            for h in range(size):
                starts[h] = begin[live[h]]
            order = np.argsort(starts)
            free = 0
            for h in range(size):
                state = live[order[h]]
                for p in range(length[state]):
                    sums[free + p] = sums[begin[state] + p]
                    head[free + p] = head[begin[state] + p]
                    tail[free + p] = tail[begin[state] + p]
                begin[state] = free
                free += length[state]
        order = np.argsort(-merged[:put], kind="mergesort")
        begin[a] = free
        length[a] = put
        for p in range(put):
            sums[free + p] = merged[order[p]]
            head[free + p] = merged_head[order[p]]
            tail[free + p] = merged_tail[order[p]]
        free += put
        least = sums[begin[a] + put - 1] if put == parts else np.int64(0)
        spread = sums[begin[a]] - least
        push(heap, size, ((-spread) << bits) | a)
        size += 1
    last = heap[0] & mask
    part_of = np.empty(samples, np.int64)
    for p in range(length[last]):
        i = head[begin[last] + p]
        while i >= 0:
            part_of[i] = p
            i = follows[i]
    return part_of
