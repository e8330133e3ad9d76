"""Count how often each length occurs."""

import numpy as np
from numba import uint64

from packing._jit import kernel

# 2**64 / golden ratio: multiplying spreads neighbouring keys over a table (Knuth, volume 3, 6.4).
SPREAD = 0x9E3779B97F4A7C15


@kernel
def histogram(lengths, capacity):
    """[capacity + 2] samples of each length; the last entry counts lengths outside 0..capacity.

    One 32-bit table: several interleaved tables hide no stall here and outgrow the first cache level.
    """
    outside = np.uint64(capacity + 1)
    count = np.zeros(capacity + 2, np.uint32)
    for i in range(lengths.shape[0]):
        count[min(np.uint64(lengths[i]), outside)] += np.uint32(1)
    return count


@kernel
def number_lengths(lengths, capacity):
    """Distinct lengths in order of appearance, samples of each, each sample's length number; empty, outside.

    Samples that are empty or outside 0..capacity get number -1. Memory and time go with the samples, not
    with the capacity: a map by open addressing, at most half full, no array replaced in the loop.
    """
    slots = 64
    while slots < 2 * lengths.shape[0]:
        slots *= 2
    mask = uint64(slots - 1)
    number = np.full(slots, -1, np.int32)
    values = np.empty(lengths.shape[0], np.int64)
    counts = np.zeros(lengths.shape[0], np.int64)
    codes = np.full(lengths.shape[0], -1, np.int32)
    distinct = 0
    empty = 0
    outside = 0
    for i in range(lengths.shape[0]):
        length = np.int64(lengths[i])
        if length <= 0 or length > capacity:
            if length == 0:
                empty += 1
            else:
                outside += 1
            continue
        slot = ((uint64(length) * uint64(SPREAD)) >> uint64(32)) & mask
        while number[slot] >= 0 and values[number[slot]] != length:
            slot = (slot + uint64(1)) & mask
        if number[slot] < 0:
            number[slot] = distinct
            values[distinct] = length
            distinct += 1
        code = number[slot]
        counts[code] += 1
        codes[i] = code
    return values[:distinct], counts[:distinct], codes, empty, outside


@kernel
def count_rows(rows, row_map, num_rows):
    """[num_rows] samples of each cursor row."""
    count = np.zeros(num_rows, np.int64)
    for i in range(rows.shape[0]):
        row = np.int64(rows[i])
        if row_map is not None:
            row = np.int64(row_map[row])
        count[row] += 1
    return count
