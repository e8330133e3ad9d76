"""The second pass: read a window's rows, pack them, write one shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loaders.packing_job.atomic import read_json, sha256, whole_file, write_json
from loaders.packing_job.corpus import packed
from loaders.packing_job.inputs import ChunkTask, Input, Task
from loaders.packing_job.rows import WindowRows, groups, table
from loaders.packing_job.scan import scratch_path
from loaders.packing_job.scratch import label_values, laid_end_to_end, read_batch
from loaders.packing_job.settings import PackSettings
from loaders.packing_job.writers import open_writer
from loaders.sources.flat import FlatChunk, as_numpy


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WindowTask:
    """One shard. Axes: B = blocks, S = rows."""

    number: int
    max_tokens: int
    shard: str
    """File name of the shard."""
    blocks: list[tuple[int, int, int, int, int]]
    """[B] (task, part, source, first row within the source, rows) of each block."""
    lengths: NDArray[np.signedinteger[Any]]
    """[S] Tokens of each row."""
    reach: NDArray[np.signedinteger[Any]] | None
    """[S] See `label_reach`."""
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardResult:
    """What is known of a finished shard."""

    shard: str
    num_packs: int
    num_tokens: int
    num_samples: int
    """Samples and pieces of samples in packs."""
    most_samples: int
    """Samples of the fullest pack."""
    emptiest: int
    """Tokens of the emptiest pack."""
    longest: int
    """Tokens of the longest sample."""
    label_tokens: int
    """Labels that count in the loss."""
    sum_of_squares: int
    """Sum over samples of length squared: what attention costs, packed."""
    size_bytes: int
    sha256: str


def write_window(
    task: WindowTask, first_pass: Sequence[Task], inputs: Sequence[Input], settings: PackSettings, work: Path
) -> int:
    """Write the shard and, when it is whole, its result; returns the tokens gone through."""
    window = read_window(task, first_pass, inputs, work)
    packs = packed(task.lengths, task.reach, settings, task.max_tokens, seed=task.seed)
    folder = shard_folder(work, task.max_tokens)
    path = folder / task.shard
    label_tokens = 0
    if not len(packs):  # every row of the window was dropped
        write_json(result_file(work, task.max_tokens, task.shard), {"shard": task.shard, "num_packs": 0})
        return int(task.lengths.sum(dtype=np.int64))
    with whole_file(path) as partial, open_writer(partial, settings) as writer:
        for first, last in groups(packs, settings.align):
            rows = table(
                window,
                packs,
                first,
                last,
                columns=writer.columns(settings.columns),
                align=settings.align,
                pad_id=settings.pad_id,
                position_start=settings.position_start,
            )
            label_tokens += _count_labels(rows)
            writer.write(rows)
    per_pack = np.diff(packs.offsets)
    result = ShardResult(
        shard=task.shard,
        num_packs=len(packs),
        num_tokens=int(packs.num_tokens.sum()),
        num_samples=int(packs.lengths.size),
        most_samples=int(per_pack.max()),
        emptiest=int(packs.num_tokens.min()),
        longest=int(packs.lengths.max()),
        label_tokens=label_tokens,
        sum_of_squares=int((packs.lengths.astype(np.float64) ** 2).sum()),
        size_bytes=path.stat().st_size,
        sha256=sha256(path),
    )
    write_json(result_file(work, task.max_tokens, task.shard), asdict(result))
    return int(task.lengths.sum(dtype=np.int64))


def _count_labels(rows: pa.Table) -> int:
    if "labels" not in rows.column_names:
        return 0
    values = as_numpy(rows["labels"].combine_chunks().flatten())
    return int(np.count_nonzero(values != -100))


def shard_folder(work: Path, max_tokens: int) -> Path:
    """Where shards wait until all are there."""
    return work / "shards" / str(max_tokens)


def result_file(work: Path, max_tokens: int, shard: str) -> Path:
    """Beside the shard; it is there only when the shard is whole."""
    return shard_folder(work, max_tokens) / f"{shard}.json"


def is_done(work: Path, target: Path, task: WindowTask) -> bool:
    """Whether an earlier run finished the shard: it waits in the work folder, or has its final name."""
    result = read_json(result_file(work, task.max_tokens, task.shard))
    if result is None:
        return False
    waiting = shard_folder(work, task.max_tokens) / task.shard
    return result["num_packs"] == 0 or waiting.exists() or (target / task.shard).exists()


def read_window(
    task: WindowTask, first_pass: Sequence[Task], inputs: Sequence[Input], work: Path
) -> WindowRows:
    """Bring the window's rows into memory: 4 bytes a token, 8 where labels are masked."""
    offsets = np.concatenate(([0], np.cumsum(task.lengths, dtype=np.int64)))
    tokens = np.empty(int(offsets[-1]), np.int32)
    labels = np.empty(tokens.size if task.reach is not None else 0, np.int32)
    source = np.empty(task.lengths.size, np.int32)
    row = np.empty(task.lengths.size, np.int64)
    carried: dict[str, list[pa.ChunkedArray]] = {}
    at = 0
    for task_number, part, source_number, first_row, num_rows in task.blocks:
        chunk = _read_block(first_pass[task_number], part, inputs, work)
        begin, end = int(offsets[at]), int(offsets[at + num_rows])
        where = f"{inputs[source_number].name}, rows from {first_row}"
        if not np.array_equal(chunk.tokens.lengths, task.lengths[at : at + num_rows]):
            raise RuntimeError(
                f"{where}: the file changed while it was being packed. Run again with --overwrite."
            )
        piece = laid_end_to_end(chunk.tokens)
        tokens[begin:end] = piece
        if labels.size:
            own = label_values(chunk, piece)
            labels[begin:end] = piece if own is None else own
        source[at : at + num_rows] = source_number
        row[at : at + num_rows] = np.arange(first_row, first_row + num_rows)
        for name, column in chunk.columns.items():
            carried.setdefault(name, []).append(column)
        at += num_rows
    columns = {
        name: pa.chunked_array([c for column in found for c in column.chunks])
        for name, found in carried.items()
    }
    return WindowRows(tokens=tokens, labels=labels, offsets=offsets, source=source, row=row, carried=columns)


def _read_block(task: Task, part: int, inputs: Sequence[Input], work: Path) -> FlatChunk:
    if isinstance(task, ChunkTask) and not task.scratch:
        source = inputs[task.source].source
        assert source is not None
        return source.decode(task.first + part)
    return read_batch(scratch_path(work / "scan", task.number), part)
