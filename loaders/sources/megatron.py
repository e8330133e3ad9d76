"""Megatron-core's indexed data sets: ``.idx`` beside ``.bin``. A row is a sequence.

The index, little-endian: the nine bytes of ``MAGIC``, version (u64, 1), code of the token type (u8), number
of sequences (u64), number of document borders (u64); then the length of each sequence (i32), its first
byte (i64), and the sequence that each document begins with, closed by the number of sequences (i64).
(megatron-core, ``core/datasets/indexed_dataset.py``.)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.sources.chunked import ChunkedSource, Layout, TableRead
from loaders.sources.files import DataFile, find_files
from loaders.sources.flat import FlatChunk, Runs
from loaders.sources.mapping import map_file

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<QBQQ")
TOKEN_TYPES: dict[int, Any] = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


class MegatronSource(ChunkedSource):
    """Sequences of indexed data sets, in file order; documents are not told apart from them."""

    mapped = True

    def find_layout(self) -> Layout:
        """One chunk a file; the index tells its rows."""
        rows, sizes = [], []
        for file in self.files:
            lengths, _, _ = read_index(file)
            binary = bin_file(file)
            rows.append(lengths.size)
            sizes.append(binary.size_bytes)
        count = len(self.files)
        return Layout(
            first_row=np.concatenate(([0], np.cumsum(rows, dtype=np.int64))).astype(np.int64),
            file=np.arange(count, dtype=np.int32),
            part=np.zeros(count, np.int64),
            size_bytes=np.array(sizes, np.int64),
        )

    def decode(self, chunk_id: int) -> FlatChunk:
        """Views of the mapped tokens. Raises ValueError when the two files do not belong together."""
        file = self.files[chunk_id]
        lengths, pointers, dtype = read_index(file)
        binary = bin_file(file)
        item = np.dtype(dtype).itemsize
        end = int((pointers + lengths * item).max(initial=0))
        if end > binary.size_bytes or bool((pointers % item).any()):
            raise ValueError(
                f"{binary.path}: the index needs {end} bytes, the file has {binary.size_bytes}; "
                "a copy that was cut short looks like this"
            )
        if binary.is_local:
            buffer = map_file(binary.path)
        else:
            with binary.open() as opened:
                buffer = opened.read()
        values = np.frombuffer(buffer, np.dtype(dtype).newbyteorder("<"), count=binary.size_bytes // item)
        runs = Runs(values=values, starts=pointers // item, lengths=lengths, is_span=True)
        return self.checked(FlatChunk(tokens=runs), chunk_id)

    def read_table(self, file: int, part: int, columns: Sequence[str] | None) -> TableRead:
        """There are no columns."""
        raise ValueError(f"{self.files[file].path} has no columns; its lengths are in the index")


def bin_file(index: DataFile) -> DataFile:
    """The tokens that belong to an index."""
    return find_files(index.path.removesuffix(".idx") + ".bin")[0]


def read_index(file: DataFile) -> tuple[NDArray[np.int64], NDArray[np.int64], Any]:
    """[S] lengths, [S] first byte of each, and the type of tokens."""
    with file.open() as opened:
        content = opened.read()
    head = len(MAGIC) + HEADER.size
    if not content.startswith(MAGIC) or len(content) < head:
        raise ValueError(f"{file.path}: not an index of Megatron-core: it begins with {content[:9]!r}")
    version, code, count, borders = HEADER.unpack_from(content, len(MAGIC))
    if version != 1 or code not in TOKEN_TYPES:
        raise ValueError(f"{file.path}: version {version} with token type {code} is not known here")
    if len(content) < head + 12 * count + 8 * borders:
        raise ValueError(
            f"{file.path}: {len(content)} bytes are too few for {count} sequences; it was cut short"
        )
    lengths = np.frombuffer(content, "<i4", count, head).astype(np.int64)
    pointers = np.frombuffer(content, "<i8", count, head + 4 * count)
    return lengths, pointers.astype(np.int64), TOKEN_TYPES[code]
