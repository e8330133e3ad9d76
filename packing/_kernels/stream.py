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

    One long loop on purpose: small functions that take a dozen arrays each count references, which
    made a sample cost 180 ns in place of 60.
    """
    residual, samples, opened_at, above, below = slots[0], slots[1], slots[2], slots[3], slots[4]
    older, newer, first, last = slots[5], slots[6], slots[7], slots[8]
    sample, following = nodes[0], nodes[1]
    num_open, total_closed, oldest, newest = now[OPEN], now[CLOSED], now[OLDEST], now[NEWEST]
    free_slot, free_node, number = now[FREE_SLOT], now[FREE_NODE], now[NEXT_SAMPLE]
    size = 0
    closed = 0
    offsets[0] = 0
    i = 0
    while i < lengths.shape[0]:
        length = np.int64(lengths[i])
        if length == 0:
            i += 1
            number += 1
            continue
        leaving = np.int64(-1)  # pack to close
        stacked = True  # whether that pack stands on a stack
        value = successor(bits0, bits1, bits2, length)
        slot = np.int64(-1)
        if value >= 0:
            slot = np.int64(top[value])
            under = below[slot]
            top[value] = under
            if under >= 0:
                above[under] = -1
            else:
                remove(bits0, bits1, bits2, value)
        elif num_open < open_packs:
            slot = free_slot
            free_slot = newer[slot]
            num_open += 1
            residual[slot] = capacity
            samples[slot] = 0
            opened_at[slot] = total_closed
            first[slot] = -1
            older[slot] = newest
            newer[slot] = -1
            if newest >= 0:
                newer[newest] = slot
            else:
                oldest = slot
            newest = slot
        else:
            leaving = np.int64(top[successor(bits0, bits1, bits2, 1)])  # the fullest; then try again
        if slot >= 0:
            node = free_node
            free_node = following[node]
            sample[node] = number
            following[node] = -1
            if first[slot] < 0:
                first[slot] = node
            else:
                following[last[slot]] = node
            last[slot] = node
            samples[slot] += 1
            value = residual[slot] - length
            residual[slot] = value
            if value == 0 or samples[slot] == max_samples:
                leaving = slot
                stacked = False
            else:
                under = np.int64(top[value])
                above[slot] = -1
                below[slot] = under
                if under >= 0:
                    above[under] = slot
                else:
                    insert(bits0, bits1, bits2, value)
                top[value] = slot
            i += 1
            number += 1
        while True:
            if leaving < 0:
                if num_open == 0 or total_closed - opened_at[oldest] < most_age:
                    break
                leaving = oldest
            if stacked:
                value = residual[leaving]
                under = below[leaving]
                over = above[leaving]
                if under >= 0:
                    above[under] = over
                if over >= 0:
                    below[over] = under
                else:
                    top[value] = under
                    if under < 0:
                        remove(bits0, bits1, bits2, value)
            node = first[leaving]
            while node >= 0:
                order[size] = sample[node]
                size += 1
                node = following[node]
            following[last[leaving]] = free_node
            free_node = first[leaving]
            before = older[leaving]
            after = newer[leaving]
            if before >= 0:
                newer[before] = after
            else:
                oldest = after
            if after >= 0:
                older[after] = before
            else:
                newest = before
            newer[leaving] = free_slot
            free_slot = leaving
            num_open -= 1
            total_closed += 1
            closed += 1
            offsets[closed] = size
            leaving = np.int64(-1)
            stacked = True
    now[OPEN], now[CLOSED], now[OLDEST], now[NEWEST] = num_open, total_closed, oldest, newest
    now[FREE_SLOT], now[FREE_NODE], now[NEXT_SAMPLE] = free_slot, free_node, number
    return closed
