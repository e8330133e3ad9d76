"""Arrow files, as `datasets` and others write them: memory-mapped, nothing decoded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from loaders.sources.chunked import ChunkedSource, Layout, TableRead
from loaders.sources.files import DataFile
from loaders.sources.flat import check_columns
from loaders.sources.mapping import map_file
from loaders.sources.parquet import told

STREAM_MARK = b"\xff\xff\xff\xff"
"""A stream begins with a message; a file with ``ARROW1``."""


class ArrowSource(ChunkedSource):
    """Rows of .arrow files (either IPC format). A chunk is a file, or a run of its record batches."""

    mapped = True
    chunk_bytes = 1 << 62
    """Batches are put together up to this size: for random reads, the fewer chunks the better."""

    def find_layout(self) -> Layout:
        """Batches put together; from the metadata, no data is touched."""
        rows, file_ids, parts, sizes = [], [], [], []
        self._first_batch: list[list[int]] = []
        for file_id, file in enumerate(self.files):
            firsts, size = [0], 0
            batches = open_batches(file)
            for number, batch in enumerate(batches):
                if size and size + batch.nbytes > self.chunk_bytes:
                    firsts.append(number)
                    size = 0
                size += batch.nbytes
            firsts.append(len(batches))
            for part in range(len(firsts) - 1):
                inside = batches[firsts[part] : firsts[part + 1]]
                rows.append(sum(batch.num_rows for batch in inside))
                sizes.append(sum(batch.nbytes for batch in inside))
                file_ids.append(file_id)
                parts.append(part)
            self._first_batch.append(firsts)
        return Layout(
            first_row=np.concatenate(([0], np.cumsum(rows, dtype=np.int64))).astype(np.int64),
            file=np.array(file_ids, np.int32),
            part=np.array(parts, np.int64),
            size_bytes=np.array(sizes, np.int64),
        )

    def read_table(self, file: int, part: int, columns: Sequence[str] | None) -> TableRead:
        """One chunk's columns, as views of the mapped file."""
        batches = open_batches(self.files[file])
        first, last = self._first_batch[file][part : part + 2]
        names = batches[0].schema.names if batches else []
        wanted = self.encoder.wants(names) if columns is None else check_columns(columns, names)
        return pa.Table.from_batches([batch.select(wanted) for batch in batches[first:last]]), {}


def open_batches(file: DataFile) -> list[pa.RecordBatch]:
    """All record batches of a file. Raises ValueError when it is not whole."""
    return told(file, "Arrow data", lambda: _read_batches(file))


def _read_batches(file: DataFile) -> list[pa.RecordBatch]:
    if file.is_local:
        source = pa.BufferReader(map_file(file.path))
    else:
        with file.open() as opened:
            source = pa.BufferReader(opened.read())
    is_stream = source.read(4) == STREAM_MARK
    source.seek(0)
    if is_stream:
        return list(pa.ipc.open_stream(source))
    reader = pa.ipc.open_file(source)
    return [reader.get_batch(number) for number in range(reader.num_record_batches)]
