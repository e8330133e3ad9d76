"""Runs into pack ids: every sample finds its pack by arithmetic.

A cursor per length, one row of four 64-bit words:

    position   pack id in the upper half, below it the filled fraction of the run's places in that pack
    step       1 / per_pack in the same fixed point, rounded up
    end        position at which the run is used up
    run        number of the run

A sample costs one dependent load and store of its cursor and one rare branch. A table of pack ids to read
from is three times slower, and a branch on "pack full?" five times.

Arguments of all dealing kernels: rows [S] is the cursor row of each sample, by way of ``row_map`` where that
is not None; row_of [K], first, packs, per_pack are the runs, those of one row as neighbours; ``renumber`` is
None or the four words of a bijection of pack ids. Loads of a run are written out in each loop: numba counts
references for arrays that a small function takes, 200 ns a run.
"""

import numpy as np
from numba import uint64

from packing._jit import kernel
from packing._kernels.words import high_product


@kernel(inline="always")
def renumbered(pack, factor, magic, shift, num_packs):
    """(pack * factor + shift) modulo num_packs, for magic = floor(factor * 2**64 / num_packs).

    The quotient comes from one upper product, at most one too small (V. Shoup's trick): 1 ns, where a
    division takes 4 to 5. Numbers and no array: handing an array on counts references, 17 ns a sample.
    """
    product = pack * factor - high_product(pack, magic) * num_packs
    if product >= num_packs:
        product -= num_packs
    product += shift
    if product >= num_packs:
        product -= num_packs
    return product


@kernel(inline="always")
def step_of(per_pack):
    """1 / per_pack in 32-bit fixed point, rounded up."""
    one = uint64(1) << uint64(32)
    step = one // uint64(per_pack)
    return step + uint64(1) if step * uint64(per_pack) != one else step


@kernel
def next_run(row, cursors, row_of, first, packs, per_pack):
    """Move a row's cursor to its next run, and from the last one back to the first."""
    k = np.int64(cursors[row, 3]) + 1
    if k == row_of.shape[0] or row_of[k] != row:
        k -= 1
        while k > 0 and row_of[k - 1] == row:
            k -= 1
    step = step_of(per_pack[k])
    start = uint64(first[k]) << uint64(32)
    cursors[row, 0] = start
    cursors[row, 1] = step
    cursors[row, 2] = start + step * uint64(packs[k] * per_pack[k])
    cursors[row, 3] = uint64(k)


@kernel
def start_cursors(num_rows, skip, row_of, first, packs, per_pack):
    """[num_rows, 4] cursors behind the first ``skip[row]`` places of each row's runs.

    skip: [num_rows], less than the row's samples, or None for 0. Rows without a run give pack id -1 for ever.
    """
    cursors = np.empty((num_rows, 4), np.uint64)
    for row in range(num_rows):
        cursors[row, 0] = uint64(0xFFFFFFFF) << uint64(32)
        cursors[row, 1] = uint64(0)
        cursors[row, 2] = ~uint64(0)
        cursors[row, 3] = uint64(0)
    k = 0
    while k < row_of.shape[0]:
        row = row_of[k]
        left = np.int64(0)
        if skip is not None:
            left = skip[row]
            while left >= packs[k] * per_pack[k]:
                left -= packs[k] * per_pack[k]
                k += 1
        step = step_of(per_pack[k])
        start = uint64(first[k]) << uint64(32)
        cursors[row, 0] = start + step * uint64(left)
        cursors[row, 1] = step
        cursors[row, 2] = start + step * uint64(packs[k] * per_pack[k])
        cursors[row, 3] = uint64(k)
        while k < row_of.shape[0] and row_of[k] == row:
            k += 1
    return cursors


@kernel
def deal_ids(rows, row_map, cursors, row_of, first, packs, per_pack, renumber, ids):
    """Write the pack id of each sample, -1 for rows without a run."""
    if renumber is not None:
        factor, magic, shift, num_packs = renumber[0], renumber[1], renumber[2], renumber[3]
    for i in range(rows.shape[0]):
        row = np.uint32(rows[i])
        if row_map is not None:
            row = np.uint32(row_map[row])
        position = cursors[row, 0]
        step = cursors[row, 1]
        pack = position >> uint64(32)
        if renumber is not None:
            other = renumbered(pack, factor, magic, shift, num_packs)
            pack = other if step != uint64(0) else pack
        ids[i] = np.int32(pack)
        position += step
        cursors[row, 0] = position
        if position >= cursors[row, 2]:
            next_run(row, cursors, row_of, first, packs, per_pack)


@kernel
def deal_grouped(rows, row_map, cursors, row_of, first, packs, per_pack, before, renumber, offsets, order):
    """Write samples pack after pack. Each row walks its runs, so its writes move forward in ``order``."""
    if renumber is not None:
        factor, magic, shift, num_packs = renumber[0], renumber[1], renumber[2], renumber[3]
    for i in range(rows.shape[0]):
        row = np.uint32(rows[i])
        if row_map is not None:
            row = np.uint32(row_map[row])
        position = cursors[row, 0]
        if cursors[row, 1] == uint64(0):
            continue
        k = np.int64(cursors[row, 3])
        place = ((position & uint64(0xFFFFFFFF)) * uint64(per_pack[k])) >> uint64(32)
        pack = position >> uint64(32)
        if renumber is not None:
            pack = renumbered(pack, factor, magic, shift, num_packs)
        order[offsets[pack] + before[k] + np.int64(place)] = i
        position += cursors[row, 1]
        cursors[row, 0] = position
        if position >= cursors[row, 2]:
            next_run(row, cursors, row_of, first, packs, per_pack)


@kernel
def run_totals(weight, first, packs, renumber, totals):
    """Add ``weight[k]`` to every pack of run k."""
    if renumber is not None:
        factor, magic, shift, num_packs = renumber[0], renumber[1], renumber[2], renumber[3]
    for k in range(first.shape[0]):
        for p in range(first[k], first[k] + packs[k]):
            if renumber is None:
                totals[p] += weight[k]
            else:
                totals[renumbered(uint64(p), factor, magic, shift, num_packs)] += weight[k]


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
