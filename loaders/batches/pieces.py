"""Payload of one source's samples, cut to what the plan wants of them. Needs no torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.batches.skipping import read_rows, replaced
from loaders.faults import Fault, fault_of
from loaders.sources._kernels import copy_runs
from loaders.sources.base import Rows, Source


def read_pieces(
    source: Source,
    row: NDArray[np.int64],
    start: NDArray[np.int64],
    num_tokens: NDArray[np.int64],
    *,
    capacity: int,
    skip_faults: bool,
) -> tuple[Rows, list[Fault]]:
    """Pieces of a source's rows, and the samples among them that were skipped.

    Args:
        source: read from.
        row: [N] rows.
        start: [N] first token of each piece within its row.
        num_tokens: [N] tokens of each piece.
        capacity: tokens of the longest sample; longer rows are cut.
        skip_faults: let a sample that cannot be read keep its place without training anything.

    Raises:
        RuntimeError: a row is not as long as its length said.
        SampleError: a row cannot be read.
    """
    skip = skip_faults and source.divisible  # media have rules of their own for what is bad
    rows, faults = read_rows(source, row, start + num_tokens, skip=skip)
    held = rows.offsets[1:] - rows.offsets[:-1]
    if held.size == num_tokens.size == np.count_nonzero(held == num_tokens):
        return rows, faults
    # only a sample above the capacity is cut, and then every piece but its last is full
    told = start + num_tokens
    wrong = np.flatnonzero((held < told) | ((held > told) & (num_tokens < capacity)))
    for bad in wrong.tolist():
        error = RuntimeError(
            f"{source.origin(int(row[bad]))}: {held[bad]} tokens were read where its length "
            f"said {told[bad]}. The plan rests on the lengths: delete the cached lengths if the data has "
            "changed, or give a length column that holds the true ones."
        )
        if not skip:
            raise error
        faults.append(fault_of(source, int(row[bad]), "read", error))
    if wrong.size:
        rows = replaced(rows, dict.fromkeys(wrong.tolist(), "its length is not what it was"), told)
    offsets = np.concatenate([[0], np.cumsum(num_tokens)])
    first = rows.offsets[:-1] + start
    cut = Rows(
        input_ids=take_runs(rows.input_ids, first, offsets),
        offsets=offsets,
        labels=None if rows.labels is None else take_runs(rows.labels, first, offsets),
        columns=rows.columns,
        rejects=rows.rejects,
        counts=rows.counts,
    )
    return cut, faults


def take_runs(tokens: NDArray[Any], starts: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[Any]:
    """Runs that begin at ``starts`` [N], as long as ``offsets`` [N + 1] say, laid end to end."""
    out = np.empty(int(offsets[-1]), tokens.dtype)
    copy_runs(tokens, starts, np.diff(offsets), out, offsets[:-1])
    return out
