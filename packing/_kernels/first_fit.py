"""First-fit decreasing where equal samples, and neighbouring packs in equal state, move together."""

import numpy as np

from packing._jit import kernel
from packing._kernels.best_fit import FRACTION, MAX_PER_PACK, longer

BLOCK = 256  # segments of a block; a walk looks at one number of each block it has no business in


@kernel
def first_fit(values, counts, capacity, max_samples):
    """Runs of an exact first-fit decreasing packing; arguments and results as of ``best_fit``.

    Open packs form segments of neighbours in equal state, in order of their first pack, kept in blocks
    with the largest residual of each. Equal samples meet them from left to right in one walk.
    """
    room = max(1024, min(4 * values.shape[0], 1 << 18))
    value = np.empty(room, np.int32)
    first = np.empty(room, np.int64)
    packs = np.empty(room, np.int64)
    per_pack = np.empty(room, np.int32)
    before = np.empty(room, np.int32)
    k = 0
    # Segment columns: first pack, packs, residual, samples inside. The last block takes new packs.
    segments = np.empty((8, BLOCK, 4), np.int64)
    size = np.zeros(8, np.int64)
    biggest = np.zeros(8, np.int64)
    order = np.zeros(8, np.int64)
    blocks = 1
    num_packs = np.int64(0)
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
            j = size[block] if opened else 0
            while waiting > 0 and (opened or j < size[block]):
                if not opened and segments[block, j, 2] < length:
                    j += 1
                    continue
                if size[block] == BLOCK:
                    segments, size, biggest, order, blocks = split_block(
                        segments, size, biggest, order, blocks, at
                    )
                    if j >= size[block]:
                        j -= size[block]
                        at += 1
                        block = order[at]
                if k == value.shape[0]:
                    value = longer(value)
                    first = longer(first)
                    packs = longer(packs)
                    per_pack = longer(per_pack)
                    before = longer(before)
                residual = np.int64(capacity) if opened else segments[block, j, 2]
                inside = np.int64(0) if opened else segments[block, j, 3]
                m = min(residual // length, waiting, max_samples - inside, MAX_PER_PACK)
                q = min(waiting // m, max(1, (FRACTION - 1) // (m * m)))
                if opened:
                    insert_segment(segments, size, block, j, num_packs, q, capacity, 0)
                    num_packs += q
                q = min(q, segments[block, j, 1])
                value[k] = v
                first[k] = segments[block, j, 0]
                packs[k] = q
                per_pack[k] = m
                before[k] = inside
                k += 1
                waiting -= q * m
                if q < segments[block, j, 1]:
                    insert_segment(segments, size, block, j, segments[block, j, 0], q, residual, inside)
                    segments[block, j + 1, 0] += q
                    segments[block, j + 1, 1] -= q
                segments[block, j, 2] -= m * length
                segments[block, j, 3] += m
                if segments[block, j, 2] < shortest or segments[block, j, 3] == max_samples:
                    size[block] -= 1
                    for i in range(j, size[block]):
                        segments[block, i] = segments[block, i + 1]
                opened = False  # a pack of which m was cut short takes the next samples too
            most = np.int64(0)
            for i in range(size[block]):
                most = max(most, segments[block, i, 2])
            biggest[block] = most
            if most < length:
                at += 1
    return value[:k], first[:k], packs[:k], per_pack[:k], before[:k], num_packs


@kernel
def insert_segment(segments, size, block, j, first, packs, residual, inside):
    """Put a segment before segment j of a block that has room."""
    for i in range(size[block], j, -1):
        segments[block, i] = segments[block, i - 1]
    size[block] += 1
    segments[block, j, 0] = first
    segments[block, j, 1] = packs
    segments[block, j, 2] = residual
    segments[block, j, 3] = inside


@kernel
def split_block(segments, size, biggest, order, blocks, at):
    """Move the upper half of the block at place ``at`` into a new block behind it."""
    if blocks == size.shape[0]:
        more = np.empty((2 * blocks, BLOCK, 4), np.int64)
        more[:blocks] = segments
        segments = more
        size = np.append(size, np.zeros_like(size))
        biggest = np.append(biggest, np.zeros_like(biggest))
        order = np.append(order, np.zeros_like(order))
    block = order[at]
    for i in range(blocks, at + 1, -1):
        order[i] = order[i - 1]
    order[at + 1] = blocks
    half = size[block] // 2
    size[blocks] = size[block] - half
    segments[blocks, : size[blocks]] = segments[block, half : size[block]]
    size[block] = half
    for part in (block, blocks):
        biggest[part] = segments[part, : size[part], 2].max()
    return segments, size, biggest, order, blocks + 1
