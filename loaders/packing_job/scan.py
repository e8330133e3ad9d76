"""The first pass: how long every row is, and which rows cannot be used."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loaders.packing_job.atomic import whole_file
from loaders.packing_job.inputs import Input, LinesTask, Task
from loaders.packing_job.lines import read_lines
from loaders.packing_job.scratch import label_reach, to_batch
from loaders.packing_job.settings import PackSettings
from loaders.sources.flat import FlatChunk


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ScanResult:
    """What a task found. Axes: B = blocks, S = rows."""

    rows: NDArray[np.int64]
    """[B] Rows of each block."""
    lengths: NDArray[np.int64]
    """[S] Tokens of each row, 0 where empty, null or rejected."""
    reach: NDArray[np.int64] | None
    """[S] See `label_reach`; None where no row of the task has a mask."""
    num_null: int
    rejects: list[dict[str, Any]]
    """Origin and reason of rows that cannot be used."""


def scan(task: Task, inputs: Sequence[Input], settings: PackSettings, folder: Path) -> int:
    """Do a task and write its result, and tokens where the task says so; returns the bytes gone through."""
    one = inputs[task.source]
    rows, lengths, reaches = [], [], []
    rejects: list[dict[str, Any]] = []
    num_null = 0
    with ExitStack() as stack:
        writer: pa.ipc.RecordBatchFileWriter | None = None
        path = scratch_path(folder, task.number)
        with_labels = False
        for chunk, origins in _chunks(task, one, settings):
            reach = label_reach(chunk, from_the_end=settings.oversize == "truncate_left")
            rows.append(chunk.tokens.lengths.size)
            lengths.append(chunk.tokens.lengths)
            reaches.append(reach)
            num_null += chunk.tokens.num_null - len(chunk.rejects)
            rejects.extend(
                {"origin": origins[row], "reason": reason} for row, reason in sorted(chunk.rejects.items())
            )
            if isinstance(task, LinesTask) or task.scratch:
                if writer is None:
                    with_labels = reach is not None
                    partial = stack.enter_context(whole_file(path))
                    batch = to_batch(chunk, with_labels=with_labels)
                    writer = stack.enter_context(pa.ipc.new_file(str(partial), batch.schema))
                    writer.write_batch(batch)
                else:
                    writer.write_batch(to_batch(chunk, with_labels=with_labels))
    result = ScanResult(
        rows=np.array(rows, np.int64),
        lengths=np.concatenate(lengths) if lengths else np.zeros(0, np.int64),
        reach=_joined_reach(reaches, lengths),
        num_null=num_null,
        rejects=rejects,
    )
    save(result, folder, task.number)
    return task.size_bytes


def _chunks(task: Task, one: Input, settings: PackSettings) -> Iterator[tuple[FlatChunk, dict[int, str]]]:
    """The task's chunks, with the origins of their rejected rows."""
    if isinstance(task, LinesTask):
        yield from read_lines(task, one, strict=settings.strict)
        return
    assert one.source is not None
    for number in range(task.first, task.last):
        chunk = one.source.decode(number)
        yield chunk, {row: one.source.chunk_origin(number, row) for row in chunk.rejects}


def _joined_reach(
    reaches: Sequence[NDArray[np.int64] | None], lengths: Sequence[NDArray[np.int64]]
) -> NDArray[np.int64] | None:
    if all(reach is None for reach in reaches):
        return None
    return np.concatenate(
        [
            np.where(length > 1, 1, -1) if reach is None else reach
            for reach, length in zip(reaches, lengths, strict=True)
        ]
    )


def scratch_path(folder: Path, number: int) -> Path:
    """Tokens of a task."""
    return folder / f"{number:06d}.arrow"


def result_path(folder: Path, number: int) -> Path:
    """Lengths of a task; it is there only when the task is done."""
    return folder / f"{number:06d}.npz"


def save(result: ScanResult, folder: Path, number: int) -> None:
    """Write a task's result."""
    told = {"num_null": result.num_null, "rejects": result.rejects}
    arrays = {"rows": result.rows, "lengths": small(result.lengths), "told": np.array(json.dumps(told))}
    if result.reach is not None:
        arrays["reach"] = small(result.reach)
    with whole_file(result_path(folder, number)) as partial, open(partial, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # the stub takes the arrays for allow_pickle


def load(folder: Path, number: int) -> ScanResult:
    """Read a task's result."""
    with np.load(result_path(folder, number)) as file:
        told = json.loads(str(file["told"]))
        return ScanResult(
            rows=file["rows"],
            lengths=file["lengths"],
            reach=file.get("reach"),
            num_null=told["num_null"],
            rejects=told["rejects"],
        )


def small(values: NDArray[np.int64]) -> NDArray[np.signedinteger[Any]]:
    """As int32 where the values fit."""
    return values.astype(np.int32) if values.size == 0 or values.max() < 2**31 else values
