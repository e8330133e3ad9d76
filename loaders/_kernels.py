"""Bare loops of the loader: keyed permutation and collation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.labels import IGNORED
from packing._jit import kernel


@kernel
def permute(
    positions: NDArray[np.int64], size: int, half_bits: int, keys: NDArray[np.uint64], out: NDArray[np.int64]
) -> None:
    """Feistel network over ``2 * half_bits`` bits, walked until the value lies below ``size``.

    Needs 0 <= positions[i] < size <= 4 ** half_bits. Everything is uint64: numba would turn a mix of
    signed and unsigned into floats.
    """
    bits = np.uint64(half_bits)
    mask = (np.uint64(1) << bits) - np.uint64(1)
    limit = np.uint64(size)
    for i in range(positions.size):
        value = np.uint64(positions[i])
        while True:
            left = value >> bits
            right = value & mask
            for r in range(keys.size):
                mixed = (right ^ keys[r]) * np.uint64(0x9E3779B97F4A7C15)
                mixed ^= mixed >> np.uint64(32)
                mixed *= np.uint64(0xD6E8FEB86659FD93)
                mixed ^= mixed >> np.uint64(32)
                left, right = right, left ^ (mixed & mask)
            value = (left << bits) | right
            if value < limit:
                break
        out[i] = np.int64(value)


@kernel
def lay_out(
    tokens: NDArray[Any],
    targets: NDArray[Any],
    offsets: NDArray[np.int64],
    input_ids: NDArray[np.int64],
    labels: NDArray[np.int64],
    position_ids: NDArray[np.int64],
    seq_idx: NDArray[np.int32],
) -> None:
    """Fill the rows of a packed batch, one plain loop a row so that each becomes vector code.

    ``labels`` has one place more than there are tokens: from its second place on it is also the shifted row,
    since what follows a sample's last token is the next sample's first, which is no label. Loops run over
    slices from 0, since numba guards an index that might be negative: 1.3 instead of 2.6 ns a token.
    """
    for i in range(offsets.size - 1):
        start, end = offsets[i], offsets[i + 1]
        size = end - start
        ids, own_tokens = input_ids[start:end], tokens[start:end]
        for t in range(size):
            ids[t] = own_tokens[t]
        own_labels, own_targets = labels[start:end], targets[start:end]
        for t in range(size):
            own_labels[t] = own_targets[t]
        labels[start] = IGNORED
        positions = position_ids[start:end]
        for t in range(size):
            positions[t] = t
        numbers = seq_idx[start:end]
        for t in range(size):
            numbers[t] = i
    labels[offsets[-1]] = IGNORED


@kernel
def take_runs(
    tokens: NDArray[Any],
    starts: NDArray[np.int64],
    out: NDArray[Any],
    offsets: NDArray[np.int64],
) -> None:
    """Copy run i of ``tokens``, from ``starts[i]``, to ``out[offsets[i]:offsets[i + 1]]``."""
    for i in range(starts.size):
        size = offsets[i + 1] - offsets[i]
        run = tokens[starts[i] : starts[i] + size]
        target = out[offsets[i] : offsets[i + 1]]
        for t in range(size):
            target[t] = run[t]


@kernel
def fill_block(
    first: int,
    starts: NDArray[np.float64],
    cumulative: NDArray[np.float64],
    rates: NDArray[np.float64],
    counts: NDArray[np.int64],
    ends: NDArray[np.int64],
    source: NDArray[np.int32],
    ordinal: NDArray[np.int64],
) -> None:
    """Lay a block's samples out, the earliest deadline among the released first.

    Position ``first + q`` gets the source whose next sample is due soonest. The k-th sample of a source is
    released where its target passes k - 1 and due where it reaches k, which keeps its count within one of the
    target. ``counts`` grows to ``ends``, whose sums differ by the block's size.
    """
    segment = 0
    num_sources = counts.size
    for q in range(source.size):
        before, after = first + q, first + q + 1
        while segment + 1 < starts.size and starts[segment + 1] <= before:
            segment += 1
        last = segment
        while last + 1 < starts.size and starts[last + 1] <= after:
            last += 1
        chosen, due = -1, np.inf
        fallback, behind = -1, -np.inf
        for i in range(num_sources):
            if counts[i] >= ends[i]:
                continue
            now = cumulative[segment, i] + (before - starts[segment]) * rates[segment, i]
            reached = cumulative[last, i] + (after - starts[last]) * rates[last, i]
            if reached > counts[i]:
                rate = rates[last, i]
                deadline = (counts[i] + 1 - now) / rate if rate > 0 else 1e18
                if deadline < due:
                    chosen, due = i, deadline
            if reached - counts[i] > behind:
                fallback, behind = i, reached - counts[i]
        if chosen < 0:
            chosen = fallback
        if chosen < 0:  # behind the end of all sources
            break
        source[q] = chosen
        ordinal[q] = counts[chosen]
        counts[chosen] += 1
