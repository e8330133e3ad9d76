"""Count how often each length occurs."""

import numpy as np

from packing._jit import kernel
from packing._kernels.lookup import slot_of, twice_as_many


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

    Samples that are empty or outside 0..capacity get number -1. Memory goes with the distinct lengths, not
    with the capacity.
    """
    keys = np.full(64, -1, np.int64)
    number = np.full(64, -1, np.int32)
    values = np.empty(32, np.int64)
    counts = np.empty(32, np.int64)
    codes = np.empty(lengths.shape[0], np.int32)
    distinct = 0
    empty = 0
    outside = 0
    for i in range(lengths.shape[0]):
        length = np.int64(lengths[i])
        codes[i] = -1
        if length <= 0 or length > capacity:
            if length == 0:
                empty += 1
            else:
                outside += 1
            continue
        slot = slot_of(keys, length)
        if keys[slot] < 0:
            if distinct == values.shape[0]:
                values = np.append(values, np.empty_like(values))
                counts = np.append(counts, np.empty_like(counts))
                keys, number = twice_as_many(keys, number)
                slot = slot_of(keys, length)
            keys[slot] = length
            number[slot] = distinct
            values[distinct] = length
            counts[distinct] = 0
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
