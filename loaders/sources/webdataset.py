"""WebDataset tars: members of one name up to the first dot are one row, in the order of the file.

``000.json`` + ``000.jpg`` is a row with a column for each key of the object, and one of bytes, ``jpg``.
``000.input_ids.npy`` gives the column ``input_ids``. Text comes as text, all else as bytes.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from loaders.sources.base import Blocks
from loaders.sources.broken import told
from loaders.sources.cache import BoundedCache
from loaders.sources.chunked import ChunkedSource, TableRead
from loaders.sources.copies import unpacked_copy
from loaders.sources.flat import check_columns
from loaders.sources.jsonl import table_of_rows
from loaders.sources.layout import FileChunks
from loaders.sources.mapping import map_file

CHUNK_ROWS = 64
"""Rows decoded together: few, since each may hold pictures."""
MAPPED = BoundedCache[pa.Buffer](1024)
"""Mapped tars of this process; a mapping holds no descriptor."""
NAMES = BoundedCache[tuple[str, ...]](1024)
TEXT = ("txt", "text", "caption", "cls")


@dataclass(frozen=True, slots=True)
class Entry:
    """One row: the members of one name."""

    key: str
    begin: int
    """First byte of its first member's header."""
    end: int
    """Byte behind its last member."""
    members: tuple[tuple[str, int, int], ...]
    """Extension, first byte and size of each."""


class WebDatasetSource(ChunkedSource):
    """Rows of .tar files, addressed by number: every tar is indexed once, from its headers.

    What is kept of a tar is where its chunks begin; the headers of a chunk are read again with it.
    """

    def chunks_of(self, file: int) -> FileChunks:
        """A pass over the headers of a tar."""
        return told(self.files[file], "tar", partial(self._index, file))

    def _index(self, file: int) -> FileChunks:
        rows, sizes, begins, ends = [], [], [], []
        content = self._content(file)
        if content.slice(max(content.size - tarfile.BLOCKSIZE, 0)).to_pybytes().strip(b"\0"):
            raise OSError("the mark at its end is missing")
        for number, entry in enumerate(entries_of(content)):
            if number % CHUNK_ROWS == 0:
                rows.append(0)
                sizes.append(0)
                begins.append(entry.begin)
                ends.append(0)
            rows[-1] += 1
            sizes[-1] += sum(size for _, _, size in entry.members)
            ends[-1] = -(-entry.end // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        return FileChunks(rows=rows, size_bytes=sizes, places={"begin": begins, "end": ends})

    def _content(self, file: int) -> pa.Buffer:
        """A local tar mapped; one that is compressed or remote, from a temporary copy."""
        one = self.files[file]
        if one.is_local and not one.is_compressed:
            return MAPPED.get(one, lambda: map_file(one.path))
        return unpacked_copy(one)

    def _entries(self, file: int, part: int) -> tuple[pa.Buffer, list[Entry]]:
        """A chunk's bytes and the rows in them."""
        layout = self.layout
        chunk = layout.chunk_id(file, part)
        begin, end = (int(layout.places[name][chunk]) for name in ("begin", "end"))
        content = self._content(file).slice(begin, end - begin)
        return content, list(entries_of(content))

    def read_table(self, file: int, part: int, columns: Sequence[str] | None) -> TableRead:
        """One chunk's rows; a member that cannot be read makes a null row and is told."""
        content, entries = self._entries(file, part)
        names = self._names(file)
        wanted = self.encoder.wants(names) if columns is None else check_columns(columns, names)
        rows: list[dict[str, Any]] = []
        bad: dict[int, str] = {}
        for number, entry in enumerate(entries):
            try:
                rows.append(row_of(content, entry, wanted))
            except ValueError as error:
                bad[number] = str(error)
                rows.append({})
        hints = self.encoder.json_types()
        types = {name: pa.int64() if name == self.length_column else hints.get(name) for name in wanted}
        return table_of_rows(rows, types, bad), bad

    def _names(self, file: int) -> tuple[str, ...]:
        """Columns of the file's first rows; found once a process, from what members are called."""
        return NAMES.get(self.files[file], lambda: column_names(*self._entries(file, 0)))

    def blocks(self) -> Blocks | None:
        """None unless asked for: every file is mapped or copied as a whole, and a chunk is but a few rows."""
        return None if self.shuffle_blocks is None else super().blocks()

    def row_origin(self, file: int, row: int) -> str:
        """File and key of the row."""
        part, within = divmod(row, CHUNK_ROWS)
        return f"{self.files[file].path}, row {row} ({self._entries(file, part)[1][within].key})"


def entries_of(content: pa.Buffer) -> Iterator[Entry]:
    """The rows of a tar, or of a part that begins with a member. Raises OSError when it is not whole."""
    members: list[tuple[str, int, int]] = []
    key, begin, end = "", 0, 0
    for name, header, offset, size in _headers(content):
        own_key, extension = split_name(name)
        if members and own_key != key:
            yield Entry(key, begin, end, tuple(members))
            members = []
        if not members:
            key, begin = own_key, header
        members.append((extension, offset, size))
        end = offset + size
    if members:
        yield Entry(key, begin, end, tuple(members))


def column_names(content: pa.Buffer, entries: Sequence[Entry]) -> tuple[str, ...]:
    """Columns of rows, in the order met; only objects are looked into."""
    names: dict[str, None] = {}
    for entry in entries:
        for extension, offset, size in entry.members:
            found: Mapping[str, Any] = {column_of(extension): None}
            if extension == "json":
                try:
                    found = _columns(extension, content.slice(offset, size).to_pybytes())
                except ValueError:
                    continue  # told when the row is read
            names.update(dict.fromkeys(found))
    return tuple(names)


def row_of(content: pa.Buffer, entry: Entry, wanted: Sequence[str] | None) -> dict[str, Any]:
    """Columns of a row; ``wanted=None`` makes all. Raises ValueError with what is wrong."""
    row: dict[str, Any] = {}
    for extension, offset, size in entry.members:
        whole_object = extension == "json"
        if wanted is not None and not whole_object and column_of(extension) not in wanted:
            continue
        row.update(_columns(extension, content.slice(offset, size).to_pybytes()))
    return row


def _headers(content: pa.Buffer) -> Iterator[tuple[str, int, int, int]]:
    """Name, first byte of the header, first byte and size of every regular member."""
    try:
        with tarfile.open(fileobj=pa.BufferReader(content), mode="r:") as tar:
            for member in tar:
                if not member.isreg() or member.name.rpartition("/")[2].startswith((".", "__")):
                    continue
                if member.offset_data + member.size > content.size:
                    raise OSError(f"member {member.name} ends behind the end of the file")
                yield member.name, member.offset, member.offset_data, member.size
                tar.members = []  # type: ignore[attr-defined]  # not in typeshed; else all headers are kept
    except tarfile.TarError as error:
        raise OSError(str(error)) from None


def split_name(name: str) -> tuple[str, str]:
    """Key and extension: ``a/000`` and ``input_ids.npy`` of ``a/000.input_ids.npy``."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return folder + slash + stem, extension.lower()


def column_of(extension: str) -> str:
    """The column that a member makes."""
    return extension.removesuffix(".npy").removesuffix(".json")


def _columns(extension: str, data: bytes) -> Mapping[str, Any]:
    """What a member holds, by column. Raises ValueError with what is wrong."""
    if extension == "json" or extension.endswith(".json"):
        try:
            value = json.loads(data)
        except ValueError as error:
            raise ValueError(f"member .{extension} is not JSON ({error})") from None
        return value if extension == "json" and isinstance(value, dict) else {column_of(extension): value}
    if extension.endswith(".npy"):
        try:
            return {column_of(extension): np.load(io.BytesIO(data), allow_pickle=False).tolist()}
        except (ValueError, EOFError) as error:
            raise ValueError(f"member .{extension} is not a numpy array ({error})") from None
    if extension in TEXT:
        try:
            return {extension: data.decode()}
        except UnicodeDecodeError as error:
            raise ValueError(
                f"member .{extension} is not UTF-8 ({error.reason} at byte {error.start})"
            ) from None
    return {extension: data}
