"""First-fit decreasing where equal samples, and neighbouring packs in equal state, move together."""

import numpy as np

from packing._jit import kernel
from packing._kernels.best_fit import FRACTION, MAX_PER_PACK

BLOCK = 64  # segments of a block; a walk looks at one number of each block it has no business in


@kernel
def first_fit(values, counts, capacity, max_samples):
    """Runs of an exact first-fit decreasing packing; arguments and results as of ``best_fit``.

    Open packs form segments of neighbours in equal state, in order of their first pack, kept in blocks
    with the largest residual of each. Equal samples meet them from left to right in one walk.
    """
    room = 4 * values.shape[0] + 1024
    while True:
        most_blocks = room // (BLOCK // 4) + 8
        segments = np.empty((most_blocks, BLOCK, 4), np.int64)
        size = np.zeros(most_blocks, np.int64)
        biggest = np.zeros(most_blocks, np.int64)
        order = np.zeros(most_blocks, np.int64)
        value = np.empty(room, np.int32)
        first = np.empty(room, np.int64)
        packs = np.empty(room, np.int64)
        per_pack = np.empty(room, np.int32)
        before = np.empty(room, np.int32)
        k, num_packs = walk(
            values, counts, capacity, max_samples, segments, size, biggest, order,
            value, first, packs, per_pack, before,
        )  # fmt: skip
        if k >= 0:
            break
        room *= 4
    return value[:k], first[:k], packs[:k], per_pack[:k], before[:k], num_packs


@kernel
def walk(
    values, counts, capacity, max_samples, segments, size, biggest, order,
    value, first, packs, per_pack, before,
):  # fmt: skip
    """The work of ``first_fit`` in tables of fixed size. Returns the number of runs, -1 if they do not fit.

    Segment columns: first pack, packs, residual, samples inside. ``order`` lists blocks from left to right;
    the last one takes new packs.
    """
    blocks = 1
    num_packs = np.int64(0)
    k = 0
    shortest = values[-1] if values.shape[0] else 0
    for v in range(values.shape[0]):
        length = np.int64(values[v])
        waiting = np.int64(counts[v])
        at = 0
        while waiting > 0:
            while at < blocks and biggest[order[at]] < length:
                at += 1
            opened = at == blocks
            if opened:
                at = blocks - 1
            block = order[at]
            j = size[block] if opened else np.int64(0)
            while waiting > 0 and (opened or j < size[block]):
                if not opened and segments[block, j, 2] < length:
                    j += 1
                    continue
                if k == value.shape[0] or blocks == order.shape[0]:
                    return -1, num_packs
                if size[block] == BLOCK:
                    # Move the upper half of the block into a new one behind it.
                    for i in range(blocks, at + 1, -1):
                        order[i] = order[i - 1]
                    order[at + 1] = blocks
                    half = BLOCK // 2
                    size[blocks] = BLOCK - half
                    size[block] = half
                    most = np.int64(0)
                    for i in range(BLOCK - half):
                        for column in range(4):
                            segments[blocks, i, column] = segments[block, half + i, column]
                        most = max(most, segments[blocks, i, 2])
                    biggest[blocks] = most
                    most = np.int64(0)
                    for i in range(half):
                        most = max(most, segments[block, i, 2])
                    biggest[block] = most
                    blocks += 1
                    if j >= half:
                        j -= half
                        at += 1
                        block = order[at]
                residual = np.int64(capacity) if opened else segments[block, j, 2]
                inside = np.int64(0) if opened else segments[block, j, 3]
                m = min(residual // length, waiting, max_samples - inside, MAX_PER_PACK)
                q = min(waiting // m, max(1, (FRACTION - 1) // (m * m)))
                if not opened:
                    q = min(q, segments[block, j, 1])
                start = num_packs if opened else segments[block, j, 0]
                if opened or q < segments[block, j, 1]:
                    # A segment of its own, before what is left of the old one.
                    if not opened:
                        segments[block, j, 0] += q
                        segments[block, j, 1] -= q
                    for i in range(size[block], j, -1):
                        for column in range(4):
                            segments[block, i, column] = segments[block, i - 1, column]
                    size[block] += 1
                    segments[block, j, 0] = start
                    segments[block, j, 1] = q
                if opened:
                    num_packs += q
                value[k] = v
                first[k] = start
                packs[k] = q
                per_pack[k] = m
                before[k] = inside
                k += 1
                waiting -= q * m
                segments[block, j, 2] = residual - m * length
                segments[block, j, 3] = inside + m
                if segments[block, j, 2] < shortest or inside + m == max_samples:
                    size[block] -= 1
                    for i in range(j, size[block]):
                        for column in range(4):
                            segments[block, i, column] = segments[block, i + 1, column]
                opened = False  # a pack of which m was cut short takes the next samples too
            most = np.int64(0)
            for i in range(size[block]):
                most = max(most, segments[block, i, 2])
            biggest[block] = most
            if most < length:
                at += 1
    return k, num_packs
