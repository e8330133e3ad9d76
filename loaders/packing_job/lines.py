"""Lines of JSON, read in ranges of bytes so that several workers share one file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

from loaders.packing_job.inputs import Input, LinesTask
from loaders.sources.chunked import decode_table
from loaders.sources.files import DataFile
from loaders.sources.flat import ColumnError, FlatChunk
from loaders.sources.jsonl import BLOCK_BYTES, BYTE_ORDER_MARK, find_line, key_names, parse_lines


def read_lines(task: LinesTask, one: Input, *, strict: bool) -> Iterator[tuple[FlatChunk, dict[int, str]]]:
    """Chunks of the lines that begin within the task's bytes, with the origins of their rejected rows."""
    file = one.files[task.file]
    names: list[str] | None = None
    for offset, content in _blocks(file, task.start, task.stop):
        names = _names(file, content) if names is None else names
        origin = partial(line_origin, file, offset, content)
        try:
            types = {name: one.encoder.json_types().get(name) for name in one.encoder.wants(names)}
            table, bad = parse_lines(content, types)
            chunk = decode_table(
                table, bad, one.encoder.encode, limit=one.max_token_id, strict=strict, origin=origin
            )
        except ColumnError as error:
            raise ValueError(f"{file.path}: {error}") from None
        yield chunk, {row: origin(row) for row in chunk.rejects}


def _names(file: DataFile, first: bytes) -> list[str]:
    """Keys of the file's first objects; a task that begins later looks there too."""
    if file.is_compressed:
        return key_names(first)
    with file.open() as opened:
        head = opened.read(BLOCK_BYTES // 8).removeprefix(BYTE_ORDER_MARK)
    return list(dict.fromkeys(key_names(head.rpartition(b"\n")[0]) + key_names(first)))


def _blocks(file: DataFile, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Whole lines that begin in ``start .. stop - 1``, about 8 MiB at a time, with the byte they begin at."""
    with file.open_unpacked() as opened:
        if file.is_compressed:
            yield from _all_blocks(file, opened)
            return
        if start:  # the line that holds byte start - 1 belongs to the task before
            opened.seek(start - 1)
            start += len(opened.readline()) - 1
        offset = start
        while offset < stop:
            content = opened.read(min(BLOCK_BYTES, stop - offset))
            if not content.endswith(b"\n"):
                content += opened.readline()
            if not content:
                return
            length = len(content)
            if offset == 0 and content.startswith(BYTE_ORDER_MARK):
                yield len(BYTE_ORDER_MARK), content[len(BYTE_ORDER_MARK) :]
            else:
                yield offset, content
            offset += length


def _all_blocks(file: DataFile, opened: BinaryIO) -> Iterator[tuple[int, bytes]]:
    offset, rest = 0, b""
    while True:
        try:
            piece = opened.read(BLOCK_BYTES)
        except Exception as error:  # each library has errors of its own
            raise ValueError(
                f"{file.path}: cannot be unpacked behind byte {offset + len(rest)} of its content ({error}). "
                "A copy that was cut short looks like this. Write it again, or leave it out."
            ) from None
        end = piece.rfind(b"\n") + 1
        if piece and not end:
            rest += piece
            continue
        content = rest + piece[:end] if piece else rest
        rest = piece[end:]
        if offset == 0:
            content = content.removeprefix(BYTE_ORDER_MARK)
        if content:
            yield offset, content
            offset += len(content)
        if not piece:
            return


def line_origin(file: DataFile, offset: int, content: bytes, row: int) -> str:
    """File, physical line and byte of a row; the lines before are counted only when it is asked for."""
    line, within = find_line(content, row)
    before = 0
    with file.open_unpacked() as opened:
        left = offset
        while left > 0 and (piece := opened.read(min(left, 1 << 20))):
            before += piece.count(b"\n")
            left -= len(piece)
    return f"{file.path}, line {before + line + 1} (byte {offset + within})"
