"""Tokens between the passes: one uncompressed Arrow file a task, one record batch a block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loaders.batches.labels import IGNORED
from loaders.packing_job import _kernels
from loaders.sources._kernels import copy_runs
from loaders.sources.encode import TokenColumns
from loaders.sources.flat import AnyRuns, FlatChunk, as_arrow


def laid_end_to_end(runs: AnyRuns) -> NDArray[np.int32]:
    """[T] The values of all runs, without gaps."""
    out = np.empty(int(runs.lengths.sum()), np.int32)
    copy_runs(runs.values, runs.starts, runs.lengths, out, np.cumsum(runs.lengths) - runs.lengths)
    return out


def label_values(chunk: FlatChunk, input_ids: NDArray[np.int32]) -> NDArray[np.int32] | None:
    """[T] Labels beside ``input_ids``, the chunk's tokens laid end to end; None where every token is one."""
    if chunk.labels is None:
        return None
    values = laid_end_to_end(chunk.labels)
    return np.where(values != 0, input_ids, np.int32(IGNORED)) if chunk.labels_are_marks else values


def to_batch(chunk: FlatChunk, *, with_labels: bool) -> pa.RecordBatch:
    """The chunk as one record batch, values without gaps."""
    offsets = as_arrow(np.concatenate(([0], np.cumsum(chunk.tokens.lengths))))
    input_ids = laid_end_to_end(chunk.tokens)
    columns = {"input_ids": pa.LargeListArray.from_arrays(offsets, as_arrow(input_ids))}
    if with_labels:
        labels = label_values(chunk, input_ids)
        labels = input_ids if labels is None else labels
        columns["labels"] = pa.LargeListArray.from_arrays(offsets, as_arrow(labels))
    for name, column in chunk.columns.items():
        columns[f"carry.{name}"] = column.combine_chunks()
    return pa.RecordBatch.from_pydict(columns)


def read_batch(path: Path, number: int) -> FlatChunk:
    """One block of a scratch file."""
    with pa.OSFile(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(number)
    table = pa.Table.from_batches([batch])
    carry = tuple(name for name in table.column_names if name.startswith("carry."))
    chunk = TokenColumns(carry=carry).encode(table)
    columns = {name.removeprefix("carry."): column for name, column in chunk.columns.items()}
    return FlatChunk(tokens=chunk.tokens, labels=chunk.labels, columns=columns)


def label_reach(chunk: FlatChunk, *, from_the_end: bool) -> NDArray[np.int64] | None:
    """[N] First (or last) token of each row that is a label, -1 where none is; None where every token is one.

    A row that is cut loses all its labels when this one is cut off.
    """
    if chunk.labels is None:
        return None
    reach = np.zeros(chunk.labels.starts.size, np.int64)
    find = _kernels.last_labelled if from_the_end else _kernels.first_labelled
    masked = 0 if chunk.labels_are_marks else IGNORED
    find(chunk.labels.values, chunk.labels.starts, chunk.labels.lengths, masked, reach)
    return reach
