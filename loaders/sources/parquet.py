"""Parquet files: a chunk is a row group."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pyarrow.parquet as pq

from loaders.sources.broken import told
from loaders.sources.cache import BoundedCache
from loaders.sources.chunked import ChunkedSource, TableRead
from loaders.sources.files import DataFile
from loaders.sources.flat import check_columns
from loaders.sources.layout import FileChunks

OPEN_FILES = BoundedCache[pq.ParquetFile](32)
"""Open files of this process, over all sources; a reader is not thread-safe, so each thread has its own."""


class ParquetSource(ChunkedSource):
    """Rows of parquet files, in file order."""

    def chunks_of(self, file: int) -> FileChunks:
        """Row groups, from the footer alone."""
        metadata = open_parquet(self.files[file]).metadata
        groups = [metadata.row_group(part) for part in range(metadata.num_row_groups)]
        return FileChunks(
            rows=[group.num_rows for group in groups], size_bytes=[group.total_byte_size for group in groups]
        )

    def column_types(self, file: int) -> Mapping[str, str]:
        """From the footer."""
        return {field.name: str(field.type) for field in open_parquet(self.files[file]).schema_arrow}

    def check(self) -> None:
        """Read every footer, so that a file cut short is told now and not at its turn."""
        assert self.layout is not None

    def read_table(self, file: int, part: int, columns: Sequence[str] | None) -> TableRead:
        """One row group's columns."""
        data_file = self.files[file]
        parquet = open_parquet(data_file)
        names = parquet.schema_arrow.names
        wanted = self.encoder.wants(names) if columns is None else check_columns(columns, names)
        threads = len(wanted) > 1  # Arrow has one for each column
        read = lambda: parquet.read_row_group(part, columns=wanted, use_threads=threads)
        return told(data_file, f"row group {part}", read), {}


def open_parquet(file: DataFile) -> pq.ParquetFile:
    """The open file, from the process's cache. Raises ValueError when it is not whole."""
    # pre_buffer fetches the wanted columns of a row group in few requests, and not page by page
    make = lambda: told(
        file,
        "footer",
        lambda: pq.ParquetFile(file.path if file.is_local else file.open(), pre_buffer=not file.is_local),
    )
    return OPEN_FILES.get((file, threading.get_ident()), make)
