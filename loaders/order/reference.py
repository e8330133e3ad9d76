"""Slow, obvious twins of the order's kernels, for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loaders.order.permutation import _round_keys

MASK_64 = (1 << 64) - 1


def permute(position: int, size: int, key: int) -> int:
    """One position through the keyed permutation, in whole numbers."""
    half_bits = max(1, ((max(size - 1, 1)).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    while True:
        left, right = position >> half_bits, position & mask
        for round_key in _round_keys(key).tolist():
            mixed = ((right ^ round_key) * 0x9E3779B97F4A7C15) & MASK_64
            mixed ^= mixed >> 32
            mixed = (mixed * 0xD6E8FEB86659FD93) & MASK_64
            mixed ^= mixed >> 32
            left, right = right, left ^ (mixed & mask)
        position = (left << half_bits) | right
        if position < size:
            return position


def permute_blocks(position: int, sizes: Sequence[int], together: int, key: int) -> int:
    """One position through `BlockShuffle`: blocks laid out one by one, rows counted one by one."""
    from loaders.order.permutation import derive

    starts = np.cumsum([0, *sizes]).tolist()
    order = [permute(place, len(sizes), derive(key, "blocks")) for place in range(len(sizes))]
    begin = 0
    for number, first in enumerate(range(0, len(order), together)):
        rows: list[int] = [starts[b] + r for b in order[first : first + together] for r in range(sizes[b])]
        if position < begin + len(rows):
            return rows[permute(position - begin, len(rows), derive(key, "bundle", number))]
        begin += len(rows)
    raise IndexError(position)
