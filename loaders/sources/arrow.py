"""Arrow files, as `datasets` and others write them: memory-mapped, nothing decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from loaders.sources.broken import told
from loaders.sources.chunked import ChunkedSource, TableRead
from loaders.sources.copies import unpacked_copy
from loaders.sources.files import DataFile
from loaders.sources.flat import check_columns
from loaders.sources.layout import FileChunks
from loaders.sources.mapping import map_file

STREAM_MARK = b"\xff\xff\xff\xff"
"""A stream begins with a message; a file with ``ARROW1``."""


class ArrowSource(ChunkedSource):
    """Rows of .arrow files (either IPC format). A chunk is a file, or a run of its record batches."""

    mapped = True
    chunk_bytes = 1 << 62
    """Batches are put together up to this size: for random reads, the fewer chunks the better."""

    def chunks_of(self, file: int) -> FileChunks:
        """Batches put together; of a mapped file from the metadata, no data is touched."""
        rows: list[int] = []
        sizes: list[int] = []
        firsts: list[int] = []
        lasts: list[int] = []
        for number, batch in enumerate(open_batches(self.files[file])):
            if not rows or (sizes[-1] and sizes[-1] + batch.nbytes > self.chunk_bytes):
                rows.append(0)
                sizes.append(0)
                firsts.append(number)
                lasts.append(number)
            rows[-1] += batch.num_rows
            sizes[-1] += batch.nbytes
            lasts[-1] = number + 1
        return FileChunks(rows=rows, size_bytes=sizes, places={"first": firsts, "last": lasts})

    def column_types(self, file: int) -> Mapping[str, str] | None:
        """From the schema."""
        batches = open_batches(self.files[file])
        return {field.name: str(field.type) for field in batches[0].schema} if batches else None

    def layout_identity(self) -> str:
        """Also what batches are put together."""
        return f"{super().layout_identity()}:{self.chunk_bytes}"

    def read_table(self, file: int, part: int, columns: Sequence[str] | None) -> TableRead:
        """One chunk's columns, as views of the mapped file."""
        batches = open_batches(self.files[file])
        chunk = self.layout.chunk_id(file, part)
        first, last = (int(self.layout.places[name][chunk]) for name in ("first", "last"))
        names = batches[0].schema.names if batches else []
        wanted = self.encoder.wants(names) if columns is None else check_columns(columns, names)
        return pa.Table.from_batches([batch.select(wanted) for batch in batches[first:last]]), {}


def open_batches(file: DataFile) -> list[pa.RecordBatch]:
    """All record batches of a file. Raises ValueError when it is not whole."""
    return told(file, "Arrow data", lambda: _read_batches(file))


def _read_batches(file: DataFile) -> list[pa.RecordBatch]:
    """Views of a local file; one behind a URL is copied first, since its batches cannot be found before."""
    source = pa.BufferReader(map_file(file.path) if file.is_local else unpacked_copy(file))
    is_stream = source.read(4) == STREAM_MARK
    source.seek(0)
    if is_stream:
        return list(pa.ipc.open_stream(source))
    reader = pa.ipc.open_file(source)
    return [reader.get_batch(number) for number in range(reader.num_record_batches)]
