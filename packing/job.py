"""What a strategy gets: checked lengths, limits and the histogram they all work on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packing.items import Lengths


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Job:
    """Axes: I = items, V = distinct lengths. Lengths and capacity count units of ``align`` tokens."""

    lengths: Lengths
    """[I] each in ``0..capacity``; items of length 0 belong into no pack."""
    capacity: int
    max_samples: int
    """Most items of a pack; at least 1, ``2**31 - 1`` where there is no limit."""
    values: NDArray[np.int64]
    """[V] lengths that occur, descending, without 0."""
    counts: NDArray[np.int64]
    """[V] items of each."""
    cost: NDArray[np.float64] | None = None
    """[I] seconds of each item; only ``balanced`` reads it."""


def count_lengths(lengths: Lengths, capacity: int) -> NDArray[np.uint32]:
    """[capacity + 2] items of each length, the last entry those outside ``0..capacity``. O(I + capacity)."""
    from packing import _kernels

    counted: NDArray[np.uint32] = _kernels.histogram(lengths, capacity)
    return counted


def occurring(histogram: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lengths of at least 1 that occur, descending, and how often."""
    values = np.flatnonzero(histogram[1:-1])[::-1] + 1
    return values, histogram[values].astype(np.int64)
