"""Runs into pack ids: every sample finds its pack by arithmetic.

A cursor per length, one row of four 64-bit words:

    position   pack id in the upper half, below it the filled fraction of the run's places in that pack
    step       1 / per_pack in the same fixed point, rounded up
    end        position at which the run is used up
    run        number of the run

A sample costs one dependent load and store of its cursor and one rare branch. A table of pack ids to read
from is three times slower, and a branch on "pack full?" five times.
"""

import numpy as np
from numba import uint64

from packing._jit import kernel


@kernel(inline="always")
def load_run(cursors, row, k, first, packs, per_pack):
    """Point a cursor at the start of run k."""
    step = (uint64(1) << uint64(32)) // uint64(per_pack[k])
    if step * uint64(per_pack[k]) != uint64(1) << uint64(32):
        step += uint64(1)
    cursors[row, 0] = uint64(first[k]) << uint64(32)
    cursors[row, 1] = step
    cursors[row, 2] = cursors[row, 0] + step * uint64(packs[k] * per_pack[k])
    cursors[row, 3] = uint64(k)


@kernel
def start_cursors(num_rows, row_of, first, packs, per_pack):
    """[num_rows, 4] cursors; rows without a run give pack id -1 for ever."""
    cursors = np.empty((num_rows, 4), np.uint64)
    for row in range(num_rows):
        cursors[row, 0] = uint64(0xFFFFFFFF) << uint64(32)
        cursors[row, 1] = uint64(0)
        cursors[row, 2] = ~uint64(0)
        cursors[row, 3] = uint64(0)
    for k in range(row_of.shape[0] - 1, -1, -1):  # runs of one row are neighbours
        load_run(cursors, row_of[k], k, first, packs, per_pack)
    return cursors


@kernel
def next_run(cursors, row, row_of, first, packs, per_pack):
    """Move a used-up cursor to the row's next run, if there is one."""
    k = np.int64(cursors[row, 3]) + 1
    if k < row_of.shape[0] and row_of[k] == row:
        load_run(cursors, row, k, first, packs, per_pack)


@kernel
def skip_samples(cursors, skip, row_of, first, packs, per_pack):
    """Move every cursor behind the ``skip[row]`` samples that earlier chunks hold."""
    k = 0
    while k < row_of.shape[0]:
        row = row_of[k]
        left = np.int64(skip[row])
        while k + 1 < row_of.shape[0] and row_of[k + 1] == row and left >= packs[k] * per_pack[k]:
            left -= packs[k] * per_pack[k]
            k += 1
        load_run(cursors, row, k, first, packs, per_pack)
        cursors[row, 0] += cursors[row, 1] * uint64(left)
        while k < row_of.shape[0] and row_of[k] == row:
            k += 1


@kernel
def deal_ids(rows, cursors, row_of, first, packs, per_pack, ids):
    """Write the pack id of each sample. rows: [S] cursor row of each sample."""
    for i in range(rows.shape[0]):
        row = np.uint32(rows[i])
        position = cursors[row, 0]
        ids[i] = np.int32(position >> uint64(32))
        position += cursors[row, 1]
        cursors[row, 0] = position
        if position >= cursors[row, 2]:
            next_run(cursors, row, row_of, first, packs, per_pack)


@kernel
def deal_grouped(rows, cursors, row_of, first, packs, per_pack, before, offsets, order):
    """Write samples pack after pack. Each length walks its runs, so its writes move forward in ``order``."""
    for i in range(rows.shape[0]):
        row = np.uint32(rows[i])
        position = cursors[row, 0]
        if cursors[row, 1] == uint64(0):
            continue
        k = cursors[row, 3]
        place = ((position & uint64(0xFFFFFFFF)) * uint64(per_pack[k])) >> uint64(32)
        order[offsets[position >> uint64(32)] + before[k] + np.int64(place)] = i
        position += cursors[row, 1]
        cursors[row, 0] = position
        if position >= cursors[row, 2]:
            next_run(cursors, row, row_of, first, packs, per_pack)


@kernel
def run_totals(weight, first, packs, totals):
    """Add ``weight[k]`` to every pack of run k."""
    for k in range(first.shape[0]):
        for p in range(first[k], first[k] + packs[k]):
            totals[p] += weight[k]


@kernel
def sum_by_pack(ids, weights, totals):
    """Add each sample's weight to its pack; negative ids are skipped."""
    for i in range(ids.shape[0]):
        if ids[i] >= 0:
            totals[ids[i]] += weights[i]


@kernel
def group_ids(ids, offsets, order):
    """Samples pack after pack, in sample order inside a pack, from pack ids."""
    place = offsets[:-1].copy()
    for i in range(ids.shape[0]):
        if ids[i] >= 0:
            order[place[ids[i]]] = i
            place[ids[i]] += 1
