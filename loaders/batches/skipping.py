"""Reads rows of which some may fail: those are replaced by rows of their length that train nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.batches.labels import IGNORED
from loaders.faults import Fault, fault_of, must_stop, raise_named
from loaders.sources.base import Rows, Source
from loaders.workers.slate import note

FILLER_TOKEN = 0
"""Id that stands in the place of a sample that could not be read; any model has it."""


def read_rows(
    source: Source, rows: NDArray[np.int64], num_tokens: NDArray[np.int64], *, skip: bool
) -> tuple[Rows, list[Fault]]:
    """The payload of ``rows``: read all at once, or row by row where one of them fails.

    Args:
        source: read at once first, so that rows without fault cost nothing more.
        rows: [N] rows asked for.
        num_tokens: [N] tokens that the place of a failing row keeps.
        skip: put `blank` rows where one fails, and tell of it; otherwise the first failure is raised.

    Raises:
        SampleError: a row fails and ``skip`` is off. Errors that name the row themselves come as they are.
    """
    if rows.size:
        note(source, int(rows[0]))
    try:
        return source.read(rows), []
    except Exception as error:
        if must_stop(error):
            raise
        together = error
    parts: list[Rows] = []
    faults: list[Fault] = []
    for row, size in zip(rows.tolist(), num_tokens.tolist(), strict=True):
        note(source, row)
        try:
            parts.append(source.read(np.array([row], np.int64)))
        except Exception as error:
            if must_stop(error) or not skip:
                raise_named(source, row, "read", error)
            faults.append(fault_of(source, row, "read", error))
            parts.append(blank(int(size), str(faults[-1])))
    if not faults and not skip:  # each alone can be read, so no single row can be named
        if any(source.origin(row) in str(together) for row in rows.tolist()):
            raise together
        raise_named(source, int(rows[0]), f"read, with {rows.size - 1} more samples", together)
    return joined(parts), faults


def blank(num_tokens: int, reason: str) -> Rows:
    """One row that trains nothing, in the place of one that could not be read."""
    return Rows(
        input_ids=np.full(num_tokens, FILLER_TOKEN, np.int64),
        offsets=np.array([0, num_tokens], np.int64),
        labels=np.full(num_tokens, IGNORED, np.int64),
        rejects={0: reason},
    )


def replaced(rows: Rows, reasons: Mapping[int, str], num_tokens: NDArray[np.int64]) -> Rows:
    """``rows`` with `blank` ones of ``num_tokens`` [N] in the places that ``reasons`` has."""
    parts = [_one(rows, at) for at in range(rows.offsets.size - 1)]
    for at, reason in reasons.items():
        parts[at] = blank(int(num_tokens[at]), reason)
    return joined(parts)


def _one(rows: Rows, at: int) -> Rows:
    span = slice(int(rows.offsets[at]), int(rows.offsets[at + 1]))
    return Rows(
        input_ids=rows.input_ids[span],
        offsets=np.array([0, span.stop - span.start], np.int64),
        labels=None if rows.labels is None else rows.labels[span],
        columns={name: [values[at]] for name, values in rows.columns.items()},
        rejects={0: rows.rejects[at]} if at in rows.rejects else {},
        counts=rows.counts if at == 0 else {},
    )


def joined(parts: list[Rows]) -> Rows:
    """Single rows one after another."""
    lengths = [int(part.offsets[-1]) for part in parts]
    labels = None
    if any(part.labels is not None for part in parts):
        labels = np.concatenate([part.input_ids if part.labels is None else part.labels for part in parts])
    names = sorted({name for part in parts for name in part.columns})
    columns: dict[str, list[Any]] = {
        name: [value for part in parts for value in part.columns.get(name, [None])] for name in names
    }
    counts: dict[str, int] = {}
    for part in parts:
        for name, count in part.counts.items():
            counts[name] = counts.get(name, 0) + count
    return Rows(
        input_ids=np.concatenate([part.input_ids for part in parts]),
        offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        labels=labels,
        columns=columns,
        rejects={at: part.rejects[0] for at, part in enumerate(parts) if part.rejects},
        counts=counts,
    )
