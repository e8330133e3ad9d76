"""Divisions by cost alone."""

from __future__ import annotations

import numpy as np

from balancer._kernels.heap import pop, push, sift_down
from packing._jit import kernel


@kernel
def least_loaded_sized(work, load, sizes, bits):
    """[S] part of each item: the least load among parts with fewer items than ``sizes``. Updates ``load``."""
    parts = load.size
    part_of = np.empty(work.size, np.int64)
    heap = np.empty(parts + 1, np.int64)
    mask = (np.int64(1) << bits) - 1
    free = sizes.copy()
    size = 0
    for p in range(parts):
        if free[p] > 0:
            push(heap, size, (load[p] << bits) | p)
            size += 1
    for i in range(work.size):
        p = heap[0] & mask
        part_of[i] = p
        load[p] += work[i]
        free[p] -= 1
        if free[p] == 0:
            pop(heap, size)
            size -= 1
        else:
            heap[0] = (load[p] << bits) | p
            sift_down(heap, size)
    return part_of


@kernel
def trade(work, items, offsets, load, may_move, steps, tolerance, part_of):
    """Lower the largest part by one move or swap at a time; returns the trades made.

    Each time the largest part looks at every other one, smallest first, for the exchange that brings both
    nearest to their mean, and takes the first that lowers the maximum. items: parts' items, each part's by
    falling work, [parts + 1] offsets. Updates ``load`` and ``part_of``.
    """
    parts = load.size
    total = np.float64(0)
    for p in range(parts):
        total += load[p]
    mean = total / parts
    counts = np.zeros(parts, np.int64)
    widest = 0
    for p in range(parts):
        counts[p] = offsets[p + 1] - offsets[p]
        widest = max(widest, counts[p])
    # Moves let a part grow: four times the widest one, then it takes no more.
    limit = 4 * widest + 4 if may_move else widest
    lists = np.empty((parts, limit), np.int64)
    for p in range(parts):
        for k in range(counts[p]):
            lists[p, k] = items[offsets[p] + k]
    made = 0
    # Parts by rising load, ties by index, kept so: sorting anew took 95 % of the time with 4,096 parts.
    order = np.argsort(load, kind="mergesort")
    for _ in range(steps):
        last = parts - 1
        while last > 0 and load[order[last - 1]] == load[order[last]]:
            last -= 1
        high = order[last]
        if load[high] <= mean * (1 + tolerance):
            break
        done = False
        for k in range(min(parts, 16)):
            low = order[k]
            if low == high:
                break
            gap = load[high] - load[low]
            best = gap
            best_x = -1
            best_y = -1
            y = 0
            # Both lists fall, so that the partner of each item is found by one walk.
            for x in range(counts[high]):
                item = work[lists[high, x]]
                if may_move and counts[low] < limit and 0 < item < gap and abs(2 * item - gap) < best:
                    best = abs(2 * item - gap)
                    best_x, best_y = x, -1
                while y < counts[low] and 2 * (item - work[lists[low, y]]) < gap:
                    y += 1
                for other in (y - 1, y):
                    if 0 <= other < counts[low]:
                        change = item - work[lists[low, other]]
                        if 0 < change < gap and abs(2 * change - gap) < best:
                            best = abs(2 * change - gap)
                            best_x, best_y = x, other
            if best_x < 0:
                continue
            moved = lists[high, best_x]
            for k2 in range(best_x, counts[high] - 1):
                lists[high, k2] = lists[high, k2 + 1]
            counts[high] -= 1
            load[high] -= work[moved]
            if best_y >= 0:
                back = lists[low, best_y]
                for k2 in range(best_y, counts[low] - 1):
                    lists[low, k2] = lists[low, k2 + 1]
                counts[low] -= 1
                load[low] -= work[back]
                _insert(lists, counts, high, back)
                load[high] += work[back]
                part_of[back] = high
            _insert(lists, counts, low, moved)
            load[low] += work[moved]
            part_of[moved] = low
            _settle(order, load, last)
            at = 0
            while order[at] != low:
                at += 1
            _settle(order, load, at)
            made += 1
            done = True
            break
        if not done:
            break
    return made


@kernel
def _settle(order, load, at):
    """Bring the part at one place of ``order`` to where its load belongs; all others are in order."""
    p = order[at]
    end = order.size - 1
    while at > 0 and (load[order[at - 1]], order[at - 1]) > (load[p], p):
        order[at] = order[at - 1]
        at -= 1
    while at < end and (load[order[at + 1]], order[at + 1]) < (load[p], p):
        order[at] = order[at + 1]
        at += 1
    order[at] = p


@kernel
def _insert(lists, counts, part, item):
    """Put an item into a part's list; items are numbered by falling work."""
    k = counts[part]
    while k > 0 and lists[part, k - 1] > item:
        lists[part, k] = lists[part, k - 1]
        k -= 1
    lists[part, k] = item
    counts[part] += 1
