"""Rows on their way from a reader: made fit for pickling, measured and laid end to end. Needs no torch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from loaders.sources.base import Rows
from loaders.sources.chunked import DECODED


def plain_rows(rows: Rows) -> Rows:
    """The same with mappings that can be pickled."""
    columns = {name: list(values) for name, values in rows.columns.items()}
    return replace(rows, columns=columns, rejects=dict(rows.rejects), counts=dict(rows.counts))


def writable(rows: Rows) -> Rows:
    """The same in memory of this process: what comes out of Ray's store may only be looked at."""
    columns = {
        name: [value.copy() if isinstance(value, np.ndarray) else value for value in values]
        for name, values in rows.columns.items()
    }
    labels = None if rows.labels is None else rows.labels.copy()
    return replace(rows, input_ids=rows.input_ids.copy(), labels=labels, columns=columns)


def size_of_rows(rows: Rows) -> int:
    """Bytes of tokens, labels and columns of arrays or bytes."""
    size = rows.input_ids.nbytes + (0 if rows.labels is None else rows.labels.nbytes)
    return size + sum(_size(value) for values in rows.columns.values() for value in values)


def concatenated(parts: Sequence[Rows]) -> Rows:
    """Rows of one source that were read in several calls, as one call would have given them."""
    if len(parts) == 1:
        return parts[0]
    sizes = [part.offsets.size - 1 for part in parts]
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    labels = None
    if any(part.labels is not None for part in parts):
        labels = np.concatenate([part.input_ids if part.labels is None else part.labels for part in parts])
    names = dict.fromkeys(name for part in parts for name in part.columns)
    first = np.cumsum([0, *sizes]).tolist()
    return Rows(
        input_ids=np.concatenate([part.input_ids for part in parts]),
        offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        labels=labels,
        columns={
            name: [
                value
                for part, size in zip(parts, sizes, strict=True)
                for value in part.columns.get(name, [None] * size)
            ]
            for name in names
        },
        rejects={
            begin + at: why
            for begin, part in zip(first, parts, strict=False)
            for at, why in part.rejects.items()
        },
        counts=_summed(part.counts for part in parts),
    )


def _summed(counts: Iterable[Any]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return total


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    return len(value) if isinstance(value, bytes | str) else 0


def release_decoded() -> None:
    """Give the memory of this process's decoded chunks back; what is needed is decoded again."""
    DECODED.clear()
    release_unused()


def release_unused() -> None:
    """Give memory back that Arrow and the C library keep for later: 50 MB of a reader, 10 ms."""
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
