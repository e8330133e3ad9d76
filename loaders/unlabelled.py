"""Samples whose labels all lie behind the place where they are cut: they would train nothing, in silence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loaders.batches.labels import IGNORED
from loaders.sources.base import Rows, Source

CHUNK = 1024
"""Rows read together."""


def left_without_labels(source: Source, lengths: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """Rows, rising, that have labels of which none is left among their first ``capacity`` tokens.

    Rows whose tokens are all labels keep some, and rows that have none are masked on purpose: both are not
    read.

    Args:
        source: of the rows.
        lengths: [S] tokens of its rows.
        capacity: tokens that are kept.

    Cost: reads the rows that are too long and partly masked, once.
    """
    if source.trains_on_all or not source.knows_loss_tokens:
        return np.zeros(0, np.int64)
    counted = np.asarray(source.loss_tokens(), np.int64)
    doubtful = np.flatnonzero((lengths > capacity) & (counted > 0) & (counted < lengths - 1))
    # as many labels as lie behind the cut can all lie there
    doubtful = doubtful[counted[doubtful] <= lengths[doubtful] - capacity]
    lost = [
        row
        for start in range(0, doubtful.size, CHUNK)
        for row in _lost(source, doubtful[start : start + CHUNK], capacity)
    ]
    return np.array(lost, np.int64)


def _lost(source: Source, rows: NDArray[np.int64], capacity: int) -> list[int]:
    try:
        held = source.read(rows)
    except Exception:  # a row that cannot be read is dealt with, and named, when its batch is read
        if rows.size == 1:
            return []
        return [row for one in rows for row in _lost(source, np.array([one]), capacity)]
    return [row for at, row in enumerate(rows.tolist()) if not _keeps(held, at, capacity)]


def _keeps(held: Rows, at: int, capacity: int) -> bool:
    if held.labels is None:
        return True
    start = int(held.offsets[at])
    return bool(np.any(held.labels[start + 1 : start + capacity] != IGNORED))
