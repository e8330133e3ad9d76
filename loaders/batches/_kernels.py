"""Bare loops of collation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.batches.labels import IGNORED
from packing._jit import kernel


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
