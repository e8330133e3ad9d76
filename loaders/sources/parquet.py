"""Parquet files: a chunk is a row group."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loaders.sources.cache import BoundedCache
from loaders.sources.chunked import ChunkedSource, Layout, TableRead
from loaders.sources.files import DataFile
from loaders.sources.flat import check_columns

OPEN_FILES = BoundedCache[pq.ParquetFile](32)
"""Open files of this process, over all sources; a reader is not thread-safe, so each thread has its own."""

Result = TypeVar("Result")


class ParquetSource(ChunkedSource):
    """Rows of parquet files, in file order."""

    def find_layout(self) -> Layout:
        """Row groups, from the footers alone."""
        rows, file_ids, parts, sizes = [], [], [], []
        for file_id, file in enumerate(self.files):
            metadata = open_parquet(file).metadata
            for part in range(metadata.num_row_groups):
                rows.append(metadata.row_group(part).num_rows)
                file_ids.append(file_id)
                parts.append(part)
                sizes.append(metadata.row_group(part).total_byte_size)
        return Layout(
            first_row=np.concatenate(([0], np.cumsum(rows, dtype=np.int64))).astype(np.int64),
            file=np.array(file_ids, np.int32),
            part=np.array(parts, np.int64),
            size_bytes=np.array(sizes, np.int64),
        )

    def check(self) -> None:
        """Read every footer, so that a file cut short is told now and not at its turn."""
        assert self.layout is not None

    def read_table(self, file: int, part: int, columns: Sequence[str] | None) -> TableRead:
        """One row group's columns."""
        data_file = self.files[file]
        parquet = open_parquet(data_file)
        names = parquet.schema_arrow.names
        wanted = self.encoder.wants(names) if columns is None else check_columns(columns, names)
        return told(data_file, f"row group {part}", lambda: parquet.read_row_group(part, columns=wanted)), {}


def open_parquet(file: DataFile) -> pq.ParquetFile:
    """The open file, from the process's cache. Raises ValueError when it is not whole."""
    # pre_buffer fetches the wanted columns of a row group in few requests, and not page by page
    make = lambda: told(
        file,
        "footer",
        lambda: pq.ParquetFile(file.path if file.is_local else file.open(), pre_buffer=not file.is_local),
    )
    return OPEN_FILES.get((file, threading.get_ident()), make)


def told(file: DataFile, part: str, action: Callable[[], Result]) -> Result:
    """Do it, and name the file when it cannot be read."""
    try:
        return action()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        reason = str(error).strip().split("\n")[0][:200]
        raise ValueError(
            f"{file.path}: the {part} cannot be read ({reason}). The file has {file.size_bytes} bytes; "
            "a copy that was cut short looks like this. Write it again, or leave it out."
        ) from None
