"""Bare loops of the loader: keyed permutation and collation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packing._jit import kernel

IGNORED = -100
"""Label of a token that takes no part in the loss."""


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
    offsets: NDArray[np.int64],
    input_ids: NDArray[np.int64],
    labels: NDArray[np.int64],
    shift_labels: NDArray[np.int64],
    position_ids: NDArray[np.int64],
    seq_idx: NDArray[np.int32],
) -> None:
    """Fill the five rows of a packed batch of plain text; every token but a sample's first is a label."""
    for i in range(offsets.size - 1):
        start, end = offsets[i], offsets[i + 1]
        for t in range(start, end):
            input_ids[t] = tokens[t]
        for t in range(start, end):
            labels[t] = tokens[t]
        for t in range(start, end - 1):
            shift_labels[t] = tokens[t + 1]
        for t in range(start, end):
            position_ids[t] = t - start
        for t in range(start, end):
            seq_idx[t] = i
        if end > start:
            labels[start] = IGNORED
            shift_labels[end - 1] = IGNORED


@kernel
def lay_out_labelled(
    tokens: NDArray[Any],
    given: NDArray[Any],
    offsets: NDArray[np.int64],
    input_ids: NDArray[np.int64],
    labels: NDArray[np.int64],
    shift_labels: NDArray[np.int64],
    position_ids: NDArray[np.int64],
    seq_idx: NDArray[np.int32],
) -> int:
    """The same with ``given`` unshifted labels. Returns how many labels count in the loss."""
    counted = 0
    for i in range(offsets.size - 1):
        start, end = offsets[i], offsets[i + 1]
        for t in range(start, end):
            input_ids[t] = tokens[t]
        for t in range(start, end):
            labels[t] = given[t]
        for t in range(start, end - 1):
            shift_labels[t] = given[t + 1]
        for t in range(start + 1, end):
            counted += given[t] != IGNORED
        for t in range(start, end):
            position_ids[t] = t - start
        for t in range(start, end):
            seq_idx[t] = i
        if end > start:
            labels[start] = IGNORED
            shift_labels[end - 1] = IGNORED
    return counted


@kernel
def take_runs(
    tokens: NDArray[Any],
    starts: NDArray[np.int64],
    out: NDArray[Any],
    offsets: NDArray[np.int64],
) -> None:
    """Copy run i of ``tokens``, from ``starts[i]``, to ``out[offsets[i]:offsets[i + 1]]``."""
    for i in range(starts.size):
        shift = starts[i] - offsets[i]
        for t in range(offsets[i], offsets[i + 1]):
            out[t] = tokens[t + shift]


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
