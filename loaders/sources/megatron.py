"""Megatron-core's indexed data sets: ``.idx`` beside ``.bin``. A row is a sequence.

The index, little-endian: the nine bytes of ``MAGIC``, version (u64, 1), code of the token type (u8), number
of sequences (u64), number of document borders (u64); then the length of each sequence (i32), its first
byte (i64), and the sequence that each document begins with, closed by the number of sequences (i64).
(megatron-core, ``core/datasets/indexed_dataset.py``.)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.sources.broken import BrokenFile
from loaders.sources.chunked import ChunkedSource, TableRead
from loaders.sources.files import DataFile, find_files
from loaders.sources.flat import FlatChunk, Runs
from loaders.sources.layout import FileChunks
from loaders.sources.mapping import map_file

MAGIC = b"MMIDIDX\x00\x00"
FETCHED_BYTES = 16 << 20
"""Tokens that are fetched together behind a URL."""
HEADER = struct.Struct("<QBQQ")
TOKEN_TYPES: dict[int, Any] = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


class MegatronSource(ChunkedSource):
    """Sequences of indexed data sets, in file order; documents are not told apart from them."""

    mapped = True

    def chunks_of(self, file: int) -> FileChunks:
        """One chunk of a mapped file; of one behind a URL runs of sequences, fetched by themselves."""
        index = read_index(self.files[file])
        binary = bin_file(self.files[file])
        end = int(index.ends.max(initial=0))
        if end > binary.size_bytes or bool((index.begins % index.item).any()):
            raise BrokenFile(
                f"{binary.path}: the index needs {end} bytes, the file has {binary.size_bytes}; "
                "a copy that was cut short looks like this"
            )
        if binary.is_local:
            return FileChunks(rows=[index.begins.size], size_bytes=[binary.size_bytes])
        total = np.concatenate(([0], np.cumsum(index.ends - index.begins)))
        count = max(-(-int(total[-1]) // FETCHED_BYTES), 1)
        cuts = np.searchsorted(total[:-1], np.arange(count) * FETCHED_BYTES)
        bounds = np.unique(np.concatenate((cuts, [index.begins.size])))
        return FileChunks(rows=np.diff(bounds), size_bytes=np.diff(total[bounds]))

    @property
    def reads_whole_files(self) -> bool:
        """Not behind URLs either."""
        return False

    def decode(self, chunk_id: int) -> FlatChunk:
        """Views of the mapped tokens, or the fetched ones."""
        layout = self.layout
        file = self.files[int(layout.file[chunk_id])]
        first = int(layout.first_row[chunk_id]) - layout.first_of_file(int(layout.file[chunk_id]))
        rows = slice(first, first + int(layout.first_row[chunk_id + 1] - layout.first_row[chunk_id]))
        index = read_index(file)
        begins, ends = index.begins[rows], index.ends[rows]
        binary = bin_file(file)
        base = 0
        if binary.is_local:
            content: Any = map_file(binary.path)
        else:
            base = int(begins.min(initial=0))
            with binary.open() as opened:
                opened.seek(base)
                content = opened.read(int(ends.max(initial=base)) - base)
        dtype = np.dtype(index.dtype).newbyteorder("<")
        values = np.frombuffer(content, dtype, count=len(content) // index.item)
        runs = Runs(
            values=values,
            starts=(begins - base) // index.item,
            lengths=(ends - begins) // index.item,
            is_span=binary.is_local,
        )
        return self.checked(FlatChunk(tokens=runs), chunk_id)

    def read_table(self, file: int, part: int, columns: Sequence[str] | None) -> TableRead:
        """There are no columns."""
        raise ValueError(f"{self.files[file].path} has no columns; its lengths are in the index")


def bin_file(index: DataFile) -> DataFile:
    """The tokens that belong to an index."""
    return find_files(index.path.removesuffix(".idx") + ".bin")[0]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Index:
    """What an index tells. Axis: S = sequences."""

    begins: NDArray[np.int64]
    """[S] First byte of each in the file of tokens."""
    ends: NDArray[np.int64]
    """[S] Byte behind its last token."""
    dtype: Any
    """Type of the tokens."""

    @property
    def item(self) -> int:
        """Bytes of a token."""
        return int(np.dtype(self.dtype).itemsize)


def read_index(file: DataFile) -> Index:
    """The index of a file. Raises BrokenFile when it is not whole or something else."""
    with file.open(forward=True) as opened:
        content = opened.read()
    head = len(MAGIC) + HEADER.size
    if not content.startswith(MAGIC) or len(content) < head:
        raise BrokenFile(f"{file.path}: not an index of Megatron-core: it begins with {content[:9]!r}")
    version, code, count, borders = HEADER.unpack_from(content, len(MAGIC))
    if version != 1 or code not in TOKEN_TYPES:
        raise BrokenFile(f"{file.path}: version {version} with token type {code} is not known here")
    if len(content) < head + 12 * count + 8 * borders:
        raise BrokenFile(
            f"{file.path}: {len(content)} bytes are too few for {count} sequences; it was cut short"
        )
    dtype = TOKEN_TYPES[code]
    lengths = np.frombuffer(content, "<i4", count, head).astype(np.int64)
    begins = np.frombuffer(content, "<i8", count, head + 4 * count).astype(np.int64)
    return Index(begins=begins, ends=begins + lengths * np.dtype(dtype).itemsize, dtype=dtype)
