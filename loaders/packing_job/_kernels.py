"""Bare loops that lay samples end to end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packing._jit import kernel


@kernel
def lay_out(
    tokens: NDArray[np.int32],
    labels: NDArray[np.int32],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    padded: NDArray[np.int64],
    pad_id: int,
    position_start: int,
    out_ids: NDArray[np.int32],
    out_positions: NDArray[np.int32],
    out_labels: NDArray[np.int32],
) -> None:
    """Copy N samples one after another, with positions and labels; ``labels`` empty: every token is one.

    The first label of a sample is -100, since no token stands before it. Padding has label -100 and goes
    on counting positions.
    """
    t = 0
    masked = labels.size > 0
    for i in range(starts.size):
        start, length, end = starts[i], lengths[i], t + padded[i]
        for j in range(length):
            out_ids[t + j] = tokens[start + j]
        for j in range(padded[i]):
            out_positions[t + j] = position_start + j
        if masked:
            for j in range(length):
                out_labels[t + j] = labels[start + j]
        else:
            for j in range(length):
                out_labels[t + j] = tokens[start + j]
        out_labels[t] = -100
        for j in range(t + length, end):
            out_ids[j] = pad_id
            out_labels[j] = -100
        t = end


@kernel
def first_labelled(
    values: NDArray[Any],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    masked: int,
    first: NDArray[np.int64],
) -> None:
    """Index of the first token behind a run's first that is a label; -1 where there is none."""
    for i in range(starts.size):
        first[i] = -1
        for j in range(1, lengths[i]):
            if values[starts[i] + j] != masked:
                first[i] = j
                break


@kernel
def last_labelled(
    values: NDArray[Any],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    masked: int,
    last: NDArray[np.int64],
) -> None:
    """Index of the last token of a run that is a label; -1 where there is none."""
    for i in range(starts.size):
        last[i] = -1
        for j in range(lengths[i] - 1, 0, -1):
            if values[starts[i] + j] != masked:
                last[i] = j
                break
