"""JSON lines: a chunk is a block of whole lines."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from loaders.sources.broken import BrokenFile
from loaders.sources.cache import BoundedCache
from loaders.sources.chunked import ChunkedSource, TableRead
from loaders.sources.copies import unpacked_copy
from loaders.sources.encode import LABEL_COLUMNS
from loaders.sources.files import DataFile
from loaders.sources.flat import ColumnError, check_columns
from loaders.sources.layout import FileChunks

BLOCK_BYTES = 8 << 20
LINES_LOOKED_AT = 100
NAMES = BoundedCache[list[str]](1024)
"""Column names of files, by file."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines of a file."""

    offset: int
    """First byte."""
    size_bytes: int
    first_line: int
    """Physical line number of its first line, counted from 1, blank lines included."""


class JsonLinesSource(ChunkedSource):
    """Rows of .jsonl files: every line that is not blank is one object, one row."""

    block_bytes = BLOCK_BYTES

    @property
    def reads_whole_files(self) -> bool:
        """Compressed ones are unpacked."""
        return any(file.is_compressed for file in self.files)

    def chunks_of(self, file: int) -> FileChunks:
        """Blocks of whole lines and their rows, from a pass over the bytes that parses nothing."""
        rows, blocks = [], []
        for block, content in split_lines(self.files[file], self.block_bytes):
            blocks.append(block)
            rows.append(count_rows(content))
        return FileChunks(
            rows=rows,
            size_bytes=[block.size_bytes for block in blocks],
            places={
                "offset": [block.offset for block in blocks],
                "first_line": [block.first_line for block in blocks],
            },
        )

    def column_types(self, file: int) -> Mapping[str, str]:
        """Kinds of the first values that are not null."""
        kinds: dict[str, str] = {}
        for line in islice(self._content(file, 0).split(b"\n"), LINES_LOOKED_AT):
            for name, value in parse_line(line)[0].items():
                if kinds.get(name, KINDS[type(None)]) == KINDS[type(None)]:
                    kinds[name] = KINDS.get(type(value), "an object")
        return kinds

    def layout_identity(self) -> str:
        """Also the size of blocks."""
        return f"{super().layout_identity()}:{self.block_bytes}"

    def _block(self, file: int, part: int) -> Block:
        layout = self.layout
        chunk = layout.chunk_id(file, part)
        offset, line = (int(layout.places[name][chunk]) for name in ("offset", "first_line"))
        return Block(offset, int(layout.size_bytes[chunk]), line)

    def read_table(self, file: int, part: int, columns: Sequence[str] | None) -> TableRead:
        """One block's rows; a line that is no JSON object becomes a null row and is told."""
        content = self._content(file, part)
        names = self._names(file, content if part == 0 else None)
        if not names and part == 0:
            refuse_without_objects(content)
        wanted = self.encoder.wants(names) if columns is None else check_columns(columns, names)
        return parse_lines(content, self.json_schema(wanted))

    def json_schema(self, wanted: Sequence[str]) -> dict[str, pa.DataType | None]:
        """Type of each column to read; None where it is taken from the values."""
        hints = self.encoder.json_types()
        return {name: pa.int64() if name == self.length_column else hints.get(name) for name in wanted}

    def row_origin(self, file: int, row: int) -> str:
        """File, physical line (from 1, blank lines counted) and byte."""
        layout = self.layout
        chunk = int(np.searchsorted(layout.first_row, layout.first_of_file(file) + row, side="right")) - 1
        part, before = int(layout.part[chunk]), int(layout.first_row[chunk]) - layout.first_of_file(file)
        block = self._block(file, part)
        line, offset = find_line(self._content(file, part), row - before)
        return f"{self.files[file].path}, line {block.first_line + line} (byte {block.offset + offset})"

    def _content(self, file: int, part: int) -> bytes:
        """A block's lines; of a compressed file from an unpacked copy, since it has no random access."""
        one, block = self.files[file], self._block(file, part)
        if one.is_compressed:
            content: bytes = unpacked_copy(one).slice(block.offset, block.size_bytes).to_pybytes()
            return content
        with one.open() as opened:
            opened.seek(block.offset)
            return opened.read(block.size_bytes)

    def _names(self, file: int, first: bytes | None) -> list[str]:
        """Keys of the file's first objects, in the order met; found once a process."""
        make = lambda: key_names(self._content(file, 0) if first is None else first)
        return NAMES.get(self.files[file], make)


def count_rows(content: bytes) -> int:
    """Lines that are not blank. In most blocks none could be, which four searches tell at memory speed."""
    marks = (b"\n\n", b"\n\r", b"\n ", b"\n\t")
    if not content[:1].isspace() and not any(mark in content for mark in marks):
        return content.count(b"\n") + (not content.endswith(b"\n"))
    return sum(1 for line in content.split(b"\n") if line.strip())


def split_lines(file: DataFile, block_bytes: int) -> Iterator[tuple[Block, bytes]]:
    """Blocks of about ``block_bytes``, cut behind line ends; a longer line makes a longer block."""
    offset, line, rest = 0, 1, b""
    with file.open_unpacked() as opened:
        while True:
            try:
                piece = opened.read(block_bytes)
            except Exception as error:  # each library that unpacks has errors of its own
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                raise BrokenFile(
                    f"{file.path}: cannot be unpacked behind byte {offset + len(rest)} of its content "
                    f"({error}). A copy that was cut short looks like this. Write it again, or leave it out."
                ) from None
            end = piece.rfind(b"\n") + 1 if piece else 0
            if piece and not end:
                rest += piece
                continue
            content = rest + piece[:end] if piece else rest
            rest = piece[end:]
            if not offset and content.startswith(BYTE_ORDER_MARK):
                offset = len(BYTE_ORDER_MARK)
                content = content[offset:]
            if content:
                yield Block(offset, len(content), line), content
                offset += len(content)
                line += content.count(b"\n")
            if not piece:
                return


def parse_lines(content: bytes, types: Mapping[str, pa.DataType | None]) -> tuple[pa.Table, dict[int, str]]:
    """Columns of a block of lines, and what is wrong with which row.

    Arrow's reader takes whole blocks; what it refuses or counts otherwise is read line by line, to tell
    which line it is.
    """
    lines = [line for line in content.split(b"\n") if line.strip()]
    if None not in types.values() and lines:
        try:
            table = pa_json.read_json(
                io.BytesIO(content),
                read_options=pa_json.ReadOptions(use_threads=False, block_size=len(content) + 1),
                parse_options=pa_json.ParseOptions(
                    explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore"
                ),
            )
        except pa.ArrowInvalid:
            pass
        else:
            if table.num_rows == len(lines):
                return table, {}
    rows: list[dict[str, Any]] = []
    bad: dict[int, str] = {}
    for number, line in enumerate(lines):
        row, reason = parse_line(line)
        rows.append(row)
        if reason:
            bad[number] = reason
    return table_of_rows(rows, types, bad), bad


def parse_line(line: bytes) -> tuple[dict[str, Any], str]:
    """The object on a line, or an empty one and what is wrong."""
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        return {}, f"not UTF-8 ({error.reason} at byte {error.start} of the line)"
    except ValueError as error:
        if line.strip() in (b"[", b"{"):
            return {}, "one JSON value over many lines. An array becomes one object a line by `jq -c '.[]'`"
        return {}, f"not JSON ({error}); a file that was cut short ends like this"
    if not isinstance(row, dict):
        return {}, f"a line must hold one object, this holds {KINDS.get(type(row), type(row).__name__)}"
    return row, ""


KINDS = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def refuse_without_objects(content: bytes) -> None:
    """Raise ColumnError where no line of a file's beginning is an object, and say what its first line is."""
    reasons = [
        (number, parse_line(line)[1])
        for number, line in enumerate(islice(content.split(b"\n"), LINES_LOOKED_AT), start=1)
        if line.strip()
    ]
    if reasons and all(reason for _, reason in reasons):
        number, reason = reasons[0]
        raise ColumnError(f"every line must hold one JSON object, and line {number} does not: {reason}.")


def table_of_rows(
    rows: Sequence[Mapping[str, Any]], types: Mapping[str, pa.DataType | None], bad: dict[int, str]
) -> pa.Table:
    """Columns of Python rows; a value of another type is told in ``bad`` and becomes null."""
    columns = {}
    for name, kind in types.items():
        values = [row.get(name) for row in rows]
        for number, value in enumerate(values):
            if not _fits(value, kind):
                values[number] = None
                bad.setdefault(
                    number, f"column {name!r} must be {_called(kind)}, it is {json.dumps(value)[:60]}"
                )
        columns[name] = pa.array(values, type=kind) if kind is not None else _inferred(name, values)
    return pa.table(columns)


def _inferred(name: str, values: list[Any]) -> pa.Array:
    """Values of a type of their own; objects that differ from row to row are kept as JSON text."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        if all(value is None or isinstance(value, list | dict) for value in values):
            return pa.array([None if value is None else json.dumps(value) for value in values])
        raise ColumnError(
            f"column {name!r} holds values of different types, such as text and numbers"
        ) from None


def _fits(value: Any, kind: pa.DataType | None) -> bool:
    """Whether a value is one of the column's type: Arrow itself would make 1 of 1.5."""
    if value is None:
        return True
    if kind is None:
        return True
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(one is None or _fits(one, kind.value_type) for one in value)
    if pa.types.is_integer(kind):
        return isinstance(value, int) and -(2**63) <= value < 2**63
    return isinstance(value, str)


def _called(kind: pa.DataType | None) -> str:
    if kind is not None and pa.types.is_list(kind):
        return "a list of integers"
    return "an integer" if kind is not None and pa.types.is_integer(kind) else "text"


def find_line(content: bytes, row: int) -> tuple[int, int]:
    """Line number (from 0) and byte of the row-th line that is not blank."""
    offset = 0
    for number, line in enumerate(content.split(b"\n")):
        if line.strip():
            if row == 0:
                return number, offset
            row -= 1
        offset += len(line) + 1
    raise IndexError(row)


def key_names(content: bytes, rows: int = 100) -> list[str]:
    """Keys of the first objects, in the order met; without label columns that hold no lists (a class)."""
    values: dict[str, Any] = {}
    good = 0
    for line in content.split(b"\n"):
        row, reason = parse_line(line) if line.strip() else ({}, "blank")
        good += not reason
        for name, value in row.items():
            values[name] = value if values.get(name) is None else values[name]
        if good == rows:
            break
    return [name for name, value in values.items() if name not in LABEL_COLUMNS or isinstance(value, list)]
