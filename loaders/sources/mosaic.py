"""MosaicML's MDS shards, read without their library: a row is a sample, a chunk a shard.

A shard, little-endian: the number of samples n (u32); n + 1 bytes at which samples begin and the last one
ends, counted from the start of the file (u32 each); a JSON object with ``column_names``,
``column_encodings`` and ``column_sizes``; the samples. A sample has the size (u32) of each column whose
size is null, then all columns. ``index.json`` beside the shards lists them. (mosaicml-streaming,
``base/format/mds/writer.py`` and ``reader.py``.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loaders.sources.broken import told
from loaders.sources.chunked import ChunkedSource, TableRead
from loaders.sources.files import DataFile
from loaders.sources.flat import ColumnError, as_arrow, check_columns
from loaders.sources.jsonl import table_of_rows
from loaders.sources.layout import FileChunks
from loaders.sources.mapping import map_file
from loaders.sources.mosaic_encodings import Decode, decoder


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shard:
    """The head of a shard. Axis: S = its samples."""

    bounds: NDArray[np.int64]
    """[S + 1] Sample s is bytes ``bounds[s]:bounds[s + 1]``."""
    names: Sequence[str]
    encodings: Sequence[str]
    sizes: Sequence[int | None]
    """Of each column; ``None``: told by each sample."""


class MosaicSource(ChunkedSource):
    """Rows of .mds shards, plain or compressed with zstd or gzip.

    Tokens stored as ``bytes`` need a type: ``column="tokens:int64"``.
    """

    def chunks_of(self, file: int) -> FileChunks:
        """One chunk a shard; its first four bytes tell the rows."""
        one = self.files[file]
        return FileChunks(rows=[told(one, "head", partial(_num_samples, one))], size_bytes=[one.size_bytes])

    def read_table(self, file: int, part: int, columns: Sequence[str] | None) -> TableRead:
        """One shard's rows; a value that cannot be decoded makes a null row and is told."""
        one = self.files[file]
        content = told(one, "shard", partial(_content, one))
        shard = told(one, "shard", partial(read_shard, content, one.path))
        types = dict(_typed(getattr(self.encoder, "column", "")))
        names = [*shard.names, *(name for name, _ in types.items() if name.partition(":")[0] in shard.names)]
        wanted = self.encoder.wants(names) if columns is None else check_columns(columns, names)
        decoders = {name: _decoder_of(name, shard, types.get(name)) for name in wanted}
        return read_columns(memoryview(content), shard, decoders)


def _typed(column: str) -> list[tuple[str, str]]:
    """``tokens:int64`` with its type; nothing for a plain name."""
    _, colon, dtype = column.partition(":")
    return [(column, dtype)] if colon else []


def _decoder_of(name: str, shard: Shard, dtype: str | None) -> tuple[int, Decode]:
    """Number of a column, and what decodes its values."""
    plain = name if name in shard.names else name.partition(":")[0]
    number = shard.names.index(plain)
    return number, decoder(shard.encodings[number], plain, dtype=dtype)


def read_shard(content: Any, path: str) -> Shard:
    """The head of a shard that is in memory. Raises OSError when the shard is not whole."""
    size = len(content)
    count = int(np.frombuffer(content, "<u4", 1)[0]) if size >= 4 else 0
    if size < 4 * (count + 2):
        raise OSError(f"{count} samples need {4 * (count + 2)} bytes before them, the shard has {size}")
    bounds = np.frombuffer(content, "<u4", count + 1, 4).astype(np.int64)
    if int(bounds[-1]) != size or bool((np.diff(bounds) < 0).any()):
        raise OSError(f"its last sample ends at byte {bounds[-1]}, the shard has {size}")
    try:
        head = json.loads(bytes(memoryview(content)[4 * (count + 2) : int(bounds[0])]))
        names, encodings, sizes = (head[f"column_{what}"] for what in ("names", "encodings", "sizes"))
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"its head does not tell its columns: {error}") from None
    return Shard(bounds=bounds, names=names, encodings=encodings, sizes=sizes)


def read_columns(
    content: memoryview, shard: Shard, decoders: Mapping[str, tuple[int, Decode]]
) -> tuple[pa.Table, dict[int, str]]:
    """Some columns of all samples of a shard, and what is wrong with which row."""
    values: dict[str, list[Any]] = {name: [] for name in decoders}
    bad: dict[int, str] = {}
    free = [number for number, size in enumerate(shard.sizes) if size is None]
    bounds = shard.bounds.tolist()
    for row in range(len(bounds) - 1):
        sample = content[bounds[row] : bounds[row + 1]]
        sizes = list(shard.sizes)
        for number, size in zip(free, np.frombuffer(sample, "<u4", len(free)).tolist(), strict=True):
            sizes[number] = size
        ends = (4 * len(free) + np.cumsum(np.array(sizes, np.int64))).tolist()
        for name, (number, decode) in decoders.items():
            end, size = ends[number], sizes[number]
            try:
                value = decode(sample[end - (size or 0) : end])
            except (ValueError, IndexError, OSError) as error:
                bad.setdefault(row, f"column {name!r} cannot be decoded ({error})")
                value = None
            values[name].append(value)
    columns = {name: _column(name, found, bad) for name, found in values.items()}
    return pa.table(columns), bad


def _column(name: str, values: list[Any], bad: dict[int, str]) -> pa.Array | pa.ChunkedArray:
    """An Arrow column; arrays of integers become lists of their common type without a copy of each value."""
    if not any(isinstance(value, np.ndarray) for value in values):
        return table_of_rows([{name: value} for value in values], {name: None}, bad)[name]
    arrays = [np.zeros(0, np.int32) if value is None else np.asarray(value) for value in values]
    wide = next((row for row, array in enumerate(arrays) if array.ndim != 1), None)
    if wide is not None:
        raise ColumnError(
            f"column {name!r} must hold arrays of one axis, that of row {wide} has shape {arrays[wide].shape}"
        )
    offsets = np.concatenate(([0], np.cumsum([array.size for array in arrays], dtype=np.int64)))
    return pa.LargeListArray.from_arrays(as_arrow(offsets), as_arrow(np.concatenate(arrays)))


def _num_samples(file: DataFile) -> int:
    """From the first four bytes; a plain shard's end is looked at too."""
    with file.open_unpacked() if file.is_compressed else file.open() as opened:
        head = opened.read(4)
        if len(head) < 4:
            raise OSError("it is empty")
        count = int.from_bytes(head, "little")
        if not file.is_compressed:
            opened.seek(4 * (count + 1))
            end = int.from_bytes(opened.read(4), "little")
            if end != file.size_bytes:
                raise OSError(f"its last sample ends at byte {end}")
    return count


def _content(file: DataFile) -> Any:
    """A local shard mapped; one that is compressed or remote, in memory."""
    if file.is_local and not file.is_compressed:
        return map_file(file.path)
    with file.open_unpacked() as opened:
        try:
            return opened.read()
        except Exception as error:  # each library that unpacks has errors of its own
            raise OSError(str(error)) from None
