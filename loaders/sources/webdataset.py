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
from loaders.sources.chunked import ChunkedSource, Layout, TableRead
from loaders.sources.flat import check_columns
from loaders.sources.jsonl import table_of_rows, unpacked_copy
from loaders.sources.mapping import map_file
from loaders.sources.parquet import told

CHUNK_ROWS = 64
"""Rows decoded together: few, since each may hold pictures."""
TEXT = ("txt", "text", "caption", "cls")


@dataclass(frozen=True, slots=True)
class Member:
    """One file in a tar."""

    extension: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One row."""

    key: str
    members: tuple[Member, ...]


class WebDatasetSource(ChunkedSource):
    """Rows of .tar files, addressed by number: every tar is indexed once, from its headers."""

    _entries: list[list[Entry]]
    _contents: dict[int, pa.Buffer]

    def find_layout(self) -> Layout:
        """A pass over the headers of every tar."""
        self._contents = {}
        self._entries = [
            told(file, "tar", partial(self._index, number)) for number, file in enumerate(self.files)
        ]
        rows, file_ids, parts, sizes = [], [], [], []
        for file_id, entries in enumerate(self._entries):
            for part, first in enumerate(range(0, len(entries), CHUNK_ROWS)):
                inside = entries[first : first + CHUNK_ROWS]
                rows.append(len(inside))
                file_ids.append(file_id)
                parts.append(part)
                sizes.append(sum(member.size_bytes for entry in inside for member in entry.members))
        return Layout(
            first_row=np.concatenate(([0], np.cumsum(rows, dtype=np.int64))).astype(np.int64),
            file=np.array(file_ids, np.int32),
            part=np.array(parts, np.int64),
            size_bytes=np.array(sizes, np.int64),
        )

    def _index(self, file: int) -> list[Entry]:
        content = self._content(file)
        entries: list[Entry] = []
        members: list[Member] = []
        key = ""
        for name, offset, size in _headers(content):
            own_key, extension = split_name(name)
            if members and own_key != key:
                entries.append(Entry(key, tuple(members)))
                members = []
            key = own_key
            members.append(Member(extension, offset, size))
        return [*entries, Entry(key, tuple(members))] if members else entries

    def _content(self, file: int) -> pa.Buffer:
        """A local tar mapped; one that is compressed or remote, from a temporary copy."""
        if file not in self._contents:
            one = self.files[file]
            local = one.is_local and not one.is_compressed
            self._contents[file] = map_file(one.path) if local else unpacked_copy(one)
        return self._contents[file]

    def read_table(self, file: int, part: int, columns: Sequence[str] | None) -> TableRead:
        """One chunk's rows; a member that cannot be read makes a null row and is told."""
        entries = self._entries[file][part * CHUNK_ROWS : (part + 1) * CHUNK_ROWS]
        names = self._names(file)
        wanted = self.encoder.wants(names) if columns is None else check_columns(columns, names)
        rows: list[dict[str, Any]] = []
        bad: dict[int, str] = {}
        for number, entry in enumerate(entries):
            try:
                rows.append(self._row(file, entry, wanted))
            except ValueError as error:
                bad[number] = str(error)
                rows.append({})
        hints = self.encoder.json_types()
        types = {name: pa.int64() if name == self.length_column else hints.get(name) for name in wanted}
        return table_of_rows(rows, types, bad), bad

    def _names(self, file: int) -> list[str]:
        """Columns of the file's first rows."""
        names: dict[str, None] = {}
        for entry in self._entries[file][:CHUNK_ROWS]:
            try:
                names.update(dict.fromkeys(self._row(file, entry, None)))
            except ValueError:
                continue
        return list(names)

    def _row(self, file: int, entry: Entry, wanted: Sequence[str] | None) -> dict[str, Any]:
        """Columns of a row; ``wanted=None`` makes all."""
        row: dict[str, Any] = {}
        content = self._content(file)
        for member in entry.members:
            whole_object = member.extension == "json"
            if wanted is not None and not whole_object and column_of(member.extension) not in wanted:
                continue
            data = content.slice(member.offset, member.size_bytes).to_pybytes()
            row.update(_columns(member.extension, data))
        return row

    def blocks(self) -> Blocks | None:
        """None unless asked for: every file is mapped or copied as a whole, and a chunk is but a few rows."""
        return None if self.shuffle_blocks is None else super().blocks()

    def row_origin(self, file: int, row: int) -> str:
        """File and key of the row."""
        return f"{self.files[file].path}, row {row} ({self._entries[file][row].key})"

    def __getstate__(self) -> dict[str, Any]:
        """Without the mappings, which every process makes for itself."""
        return {**super().__getstate__(), "_contents": {}}


def _headers(content: pa.Buffer) -> Iterator[tuple[str, int, int]]:
    """Name, first byte and size of every regular member. Raises OSError when the tar is not whole."""
    try:
        with tarfile.open(fileobj=pa.BufferReader(content), mode="r:") as tar:
            for member in tar:
                if not member.isreg() or member.name.rpartition("/")[2].startswith((".", "__")):
                    continue
                if member.offset_data + member.size > content.size:
                    raise OSError(f"member {member.name} ends behind the end of the file")
                yield member.name, member.offset_data, member.size
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
