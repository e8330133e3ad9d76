"""A 4-ary min-heap of int64 keys that carry a load in the high bits and an index in the low ones.

Packing both into one word makes ties break by index and a sift touch one cache line a level.
"""

from __future__ import annotations

from packing._jit import kernel


@kernel
def heapify(heap, size):
    """Order the first ``size`` keys as a heap. Sorting them would do, but takes numba a second to compile."""
    for parent in range((size + 2) >> 2, -1, -1):
        _sift(heap, size, parent)


@kernel
def _sift(heap, size, start):
    """Restore the order below ``start``."""
    if start >= size:
        return
    key = heap[start]
    parent = start
    while True:
        child = 4 * parent + 1
        if child >= size:
            break
        best = child
        for other in range(child + 1, min(child + 4, size)):
            if heap[other] < heap[best]:
                best = other
        if heap[best] >= key:
            break
        heap[parent] = heap[best]
        parent = best
    heap[parent] = key


@kernel(inline="always")
def sift_down(heap, size):
    """Restore the order after the smallest key, ``heap[0]``, has grown."""
    key = heap[0]
    parent = 0
    while True:
        child = 4 * parent + 1
        if child >= size:
            break
        end = min(child + 4, size)
        best = child
        best_key = heap[child]
        for other in range(child + 1, end):
            if heap[other] < best_key:
                best_key = heap[other]
                best = other
        if best_key >= key:
            break
        heap[parent] = best_key
        parent = best
    heap[parent] = key


@kernel(inline="always")
def push(heap, size, key):
    """Add ``key`` to a heap of ``size`` keys; the caller counts."""
    child = size
    while child > 0:
        parent = (child - 1) >> 2
        if heap[parent] <= key:
            break
        heap[child] = heap[parent]
        child = parent
    heap[child] = key


@kernel(inline="always")
def pop(heap, size):
    """Take the smallest key out of a heap of ``size`` keys; the caller counts."""
    smallest = heap[0]
    heap[0] = heap[size - 1]
    if size > 2:
        sift_down(heap, size - 1)
    return smallest
