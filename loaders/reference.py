"""Slow, obvious twins of the loader's kernels, for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loaders.order import _round_keys

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


def lay_out(
    samples: Sequence[Sequence[int]], labels: Sequence[Sequence[int]] | None = None
) -> dict[str, NDArray[np.int64]]:
    """The rows of a packed batch, sample by sample and token by token."""
    rows: dict[str, list[int]] = {
        name: [] for name in ("input_ids", "labels", "shift_labels", "position_ids", "seq_idx")
    }
    for number, tokens in enumerate(samples):
        targets = list(tokens if labels is None else labels[number])
        rows["input_ids"] += tokens
        rows["labels"] += [-100, *targets[1:]][: len(tokens)]
        rows["shift_labels"] += [*targets[1:], -100][: len(tokens)]
        rows["position_ids"] += range(len(tokens))
        rows["seq_idx"] += [number] * len(tokens)
    return {name: np.array(values, np.int64) for name, values in rows.items()}


def permute_blocks(position: int, sizes: Sequence[int], together: int, key: int) -> int:
    """One position through `loaders.windows.Windows`: blocks laid out one by one, rows counted one by one."""
    from loaders.order import derive

    starts = np.cumsum([0, *sizes]).tolist()
    order = [permute(place, len(sizes), derive(key, "blocks")) for place in range(len(sizes))]
    begin = 0
    for number, first in enumerate(range(0, len(order), together)):
        rows: list[int] = [starts[b] + r for b in order[first : first + together] for r in range(sizes[b])]
        if position < begin + len(rows):
            return rows[permute(position - begin, len(rows), derive(key, "window", number))]
        begin += len(rows)
    raise IndexError(position)
