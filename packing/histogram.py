"""Lengths counted, and for each item the row under which its length is kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packing.items import Lengths

MOST_ROWS = 1 << 20
"""Rows of 32 bytes that a table over all lengths may have; beyond, only lengths that occur get one."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Histogram:
    """Axes: I = items, V = distinct lengths that can be packed."""

    values: NDArray[np.int64]
    """[V] lengths in ``1..capacity`` that occur, descending."""
    counts: NDArray[np.int64]
    """[V] items of each."""
    rows: Lengths
    """[I] row of each item, through ``row_map`` where there is one; items in no pack have their own row."""
    row_map: NDArray[np.int32] | None
    row_of_value: NDArray[np.int32]
    """[V] row of each length."""
    num_rows: int
    empty: int
    """Items of length 0."""
    outside: int
    """Items that are negative or longer than the capacity."""


def count_lengths(lengths: Lengths, capacity: int) -> Histogram:
    """Count lengths and give each a row. lengths: [I], of any value.

    O(I + capacity) in one pass with a table over all lengths; where items are few beside the capacity, O(I)
    with a map of the lengths that occur, which for 10,000 items is faster from a capacity of 20,000 on.
    """
    if 2 * lengths.size < capacity and lengths.size <= MOST_ROWS:
        return _few_items(lengths, capacity)
    from packing import _kernels

    table = _kernels.histogram(lengths, capacity)
    values = np.flatnonzero(table[1:-1])[::-1] + 1
    row_map = None
    row_of_value = values.astype(np.int32)
    num_rows = capacity + 1
    if capacity > MOST_ROWS:
        row_of_value = np.arange(values.size, dtype=np.int32)
        num_rows = values.size + 1
        row_map = np.full(capacity + 1, values.size, np.int32)
        row_map[values] = row_of_value
    return Histogram(
        values=values,
        counts=table[values].astype(np.int64),
        rows=lengths,
        row_map=row_map,
        row_of_value=row_of_value,
        num_rows=num_rows,
        empty=int(table[0]),
        outside=int(table[-1]),
    )


def _few_items(lengths: Lengths, capacity: int) -> Histogram:
    from packing import _kernels

    found, counts, codes, empty, outside = _kernels.number_lengths(lengths, capacity)
    descending = np.argsort(-found)
    row_of_code = np.empty(found.size + 1, np.int32)
    row_of_code[descending] = np.arange(found.size, dtype=np.int32)
    row_of_code[-1] = found.size  # codes of items in no pack are -1
    return Histogram(
        values=found[descending],
        counts=counts[descending],
        rows=row_of_code[codes],
        row_map=None,
        row_of_value=np.arange(found.size, dtype=np.int32),
        num_rows=int(found.size) + 1,
        empty=int(empty),
        outside=int(outside),
    )
