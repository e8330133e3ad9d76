"""The documents that every loader reads: int32 token lists in one memory-mapped Arrow column."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

FILE = "documents.arrow"


def write(folder: Path, documents: int) -> Path:
    """Log-normal lengths (median 299, at most 32,768 tokens)."""
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.lognormal(np.log(299), 1.0, documents).astype(np.int64) + 1, 32_768)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = rng.integers(0, 50_000, offsets[-1], dtype=np.int32)
    table = pa.table({"input_ids": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens))})
    with pa.OSFile(str(folder / FILE), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return folder / FILE


def columns(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, offsets), memory-mapped."""
    column = pa.ipc.open_file(pa.memory_map(str(folder / FILE))).read_all()["input_ids"].chunk(0)
    return column.values.to_numpy(), column.offsets.to_numpy()


def each(folder: Path) -> Iterator[np.ndarray]:
    """One document after another."""
    tokens, offsets = columns(folder)
    for row in range(offsets.size - 1):
        yield tokens[offsets[row] : offsets[row + 1]]


class Flat:
    """A hand-written map-style data set over the column; opened in the process that reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: tuple[np.ndarray, np.ndarray] | None = None

    def column(self) -> tuple[np.ndarray, np.ndarray]:
        if self.opened is None:
            self.opened = columns(self.folder)
        return self.opened

    def __len__(self) -> int:
        return self.column()[1].size - 1

    def __getitem__(self, row: int) -> np.ndarray:
        tokens, offsets = self.column()
        return tokens[offsets[row] : offsets[row + 1]]

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "opened": None}


class Batched(Flat):
    """The same with torch's method for a whole batch at once."""

    def __getitems__(self, rows: list[int]) -> list[np.ndarray]:
        tokens, offsets = self.column()
        return [tokens[offsets[row] : offsets[row + 1]] for row in rows]
