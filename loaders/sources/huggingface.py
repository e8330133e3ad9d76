"""A Hugging Face `datasets.Dataset`: its memory-mapped Arrow table, read without its own formatting."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loaders.sources.chunked import ChunkedSource, TableRead, without_rows
from loaders.sources.encode import Encoder
from loaders.sources.flat import MAX_TOKEN_ID, FlatChunk, RowErrors, as_numpy, check_columns
from loaders.sources.layout import FileChunks, Layout, join_files


class HuggingFaceSource(ChunkedSource):
    """Rows of a map-style ``datasets.Dataset``, in its own order: after `select`, `shuffle`, `filter`."""

    mapped = True

    def __init__(
        self,
        dataset: Any,
        *,
        encoder: Encoder,
        name: str,
        length: str | None = None,
        max_token_id: int = MAX_TOKEN_ID,
        on_bad: str = "error",
    ) -> None:
        self.dataset = dataset
        super().__init__(
            [], encoder=encoder, name=name, length=length, max_token_id=max_token_id, on_bad=on_bad
        )

    def find_layout(self) -> Layout:
        """The whole data set is one chunk: nothing is copied, so nothing need be cut."""
        return join_files([self.chunks_of(0)])

    def chunks_of(self, file: int) -> FileChunks:
        """All rows."""
        return FileChunks(rows=[len(self.dataset)], size_bytes=[self.dataset.data.nbytes])

    def read_table(self, file: int, part: int, columns: Sequence[str] | None) -> TableRead:
        """The columns of the table below, over its mapped files."""
        table = self.dataset.data.table
        wanted = (
            self.encoder.wants(table.column_names)
            if columns is None
            else check_columns(columns, table.column_names)
        )
        table = table.select(wanted)
        return (table if columns is None else self._selected(table)), {}

    def encode(self, table: pa.Table) -> FlatChunk:
        """The selected rows, as views."""
        if self._indices is None:
            return self.encoder.encode(table)
        try:
            return self.encoder.encode(table).take(self._indices)
        except RowErrors:  # perhaps in rows that are not selected
            return self.encoder.encode(self._selected(table))

    def without(self, table: pa.Table, bad: Mapping[int, str]) -> pa.Table:
        """The table below with some of the selected rows null."""
        below = bad if self._indices is None else [int(self._indices[row]) for row in bad]
        return without_rows(table, below)

    @property
    def _indices(self) -> NDArray[np.int64] | None:
        """[S] Row of the table below for each row of the data set; None when they are the same."""
        indices = self.dataset._indices
        return None if indices is None else as_numpy(indices.table.column(0)).view(np.int64)

    def _selected(self, table: pa.Table) -> pa.Table:
        return table if self._indices is None else table.take(pa.array(self._indices))

    def row_origin(self, file: int, row: int) -> str:
        """Row of the data set."""
        return f"{self.name}, row {row}"

    def place(self, file: int) -> str:
        """The data set's name."""
        return self.name

    def key(self) -> Hashable:
        """A data set is changed by making another, which has another fingerprint."""
        return (self.identity(), self.dataset._fingerprint, len(self.dataset))

    def fingerprint(self) -> str:
        """The data set's own, which `datasets` derives from its files and every change since."""
        parts = f"{self.identity()}|{self.dataset._fingerprint}|{len(self.dataset)}"
        return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()
