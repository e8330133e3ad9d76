"""Best fit over a stream, with a bounded number of open packs.

Columns by slot of an open pack: residual, samples, opened_at (packs closed before it), above / below (its
neighbours among packs of one residual), older / newer (neighbours by age), first / last (its samples' nodes).
Nodes hold a sample's number and the next node. ``now`` holds the scalars: see the names below.
"""

import numpy as np

from packing._jit import kernel
from packing._kernels.bitmap import insert, remove, successor

OPEN, CLOSED, OLDEST, NEWEST, FREE_SLOT, FREE_NODE, NEXT_SAMPLE = range(7)


@kernel
def attach(slot, residual, above, below, top, bits0, bits1, bits2):
    """Put an open pack on the stack of its residual."""
    value = residual[slot]
    above[slot] = -1
    below[slot] = top[value]
    if below[slot] >= 0:
        above[below[slot]] = slot
    else:
        insert(bits0, bits1, bits2, value)
    top[value] = slot


@kernel
def detach(slot, residual, above, below, top, bits0, bits1, bits2):
    """Take an open pack from the stack of its residual, wherever it stands in it."""
    value = residual[slot]
    if below[slot] >= 0:
        above[below[slot]] = above[slot]
    if above[slot] >= 0:
        below[above[slot]] = below[slot]
    else:
        top[value] = below[slot]
        if top[value] < 0:
            remove(bits0, bits1, bits2, value)


@kernel
def close(slot, now, opened_at, older, newer, first, last, sample, following, order, size):
    """Write a pack's samples to ``order`` from ``size`` on, free its slot and nodes; returns the new size."""
    node = first[slot]
    while node >= 0:
        order[size] = sample[node]
        size += 1
        node = following[node]
    following[last[slot]] = now[FREE_NODE]
    now[FREE_NODE] = first[slot]
    if older[slot] >= 0:
        newer[older[slot]] = newer[slot]
    else:
        now[OLDEST] = newer[slot]
    if newer[slot] >= 0:
        older[newer[slot]] = older[slot]
    else:
        now[NEWEST] = older[slot]
    newer[slot] = now[FREE_SLOT]
    now[FREE_SLOT] = slot
    now[OPEN] -= 1
    now[CLOSED] += 1
    return size


@kernel
def stream_best_fit(
    lengths,
    capacity,
    max_samples,
    open_packs,
    most_age,
    now,
    slots,
    nodes,
    top,
    bits0,
    bits1,
    bits2,
    order,
    offsets,
):
    """Place samples; returns the packs that closed, as ``offsets`` [0 .. closed] into ``order``.

    lengths: in 0..capacity, 0 is skipped. A pack closes when it is full, when it is the fullest and another
    must be opened, or when ``most_age`` packs have closed since it was opened. slots: [9, open_packs];
    nodes: [2, .] with room for all samples.
    """
    residual, samples, opened_at, above, below, older, newer, first, last = (
        slots[0],
        slots[1],
        slots[2],
        slots[3],
        slots[4],
        slots[5],
        slots[6],
        slots[7],
        slots[8],
    )
    sample, following = nodes[0], nodes[1]
    size = 0
    closed = 0
    offsets[0] = 0
    for i in range(lengths.shape[0]):
        length = np.int64(lengths[i])
        number = now[NEXT_SAMPLE]
        now[NEXT_SAMPLE] += 1
        if length == 0:
            continue
        fitting = successor(bits0, bits1, bits2, length)
        if fitting >= 0:
            slot = top[fitting]
            detach(slot, residual, above, below, top, bits0, bits1, bits2)
        else:
            if now[OPEN] == open_packs:
                slot = top[successor(bits0, bits1, bits2, 1)]
                detach(slot, residual, above, below, top, bits0, bits1, bits2)
                size = close(slot, now, opened_at, older, newer, first, last, sample, following, order, size)
                closed += 1
                offsets[closed] = size
            slot = now[FREE_SLOT]
            now[FREE_SLOT] = newer[slot]
            now[OPEN] += 1
            residual[slot] = capacity
            samples[slot] = 0
            opened_at[slot] = now[CLOSED]
            first[slot] = -1
            older[slot] = now[NEWEST]
            newer[slot] = -1
            if now[NEWEST] >= 0:
                newer[now[NEWEST]] = slot
            else:
                now[OLDEST] = slot
            now[NEWEST] = slot
        node = now[FREE_NODE]
        now[FREE_NODE] = following[node]
        sample[node] = number
        following[node] = -1
        if first[slot] < 0:
            first[slot] = node
        else:
            following[last[slot]] = node
        last[slot] = node
        residual[slot] -= length
        samples[slot] += 1
        if residual[slot] == 0 or samples[slot] == max_samples:
            size = close(slot, now, opened_at, older, newer, first, last, sample, following, order, size)
            closed += 1
            offsets[closed] = size
        else:
            attach(slot, residual, above, below, top, bits0, bits1, bits2)
        while now[OPEN] > 0 and now[CLOSED] - opened_at[now[OLDEST]] >= most_age:
            slot = now[OLDEST]
            detach(slot, residual, above, below, top, bits0, bits1, bits2)
            size = close(slot, now, opened_at, older, newer, first, last, sample, following, order, size)
            closed += 1
            offsets[closed] = size
    return closed
