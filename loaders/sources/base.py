"""What every source offers: lengths before anything is read, then rows by number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from loaders.batches.joins import Join


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rows:
    """Payload of N rows, laid end to end. Axes: N = rows asked for, T = all their tokens."""

    input_ids: NDArray[np.integer[Any]]
    """[T] Token ids, row after row."""
    offsets: NDArray[np.int64]
    """[N + 1] Row i holds ``input_ids[offsets[i]:offsets[i + 1]]``."""
    labels: NDArray[np.integer[Any]] | None = None
    """[T] Unshifted labels, -100 where masked; ``None``: every token is a label."""
    columns: Mapping[str, list[Any]] = field(default_factory=lambda: MappingProxyType({}))
    """Further columns of the rows, N values each."""
    rejects: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """Of the N rows those that could not be read: what is wrong with each. They keep their length, with no
    label."""
    counts: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """What else is to be counted, for the loader's metrics: ``{"corrected": 2}``."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Blocks:
    """Rows that lie together, where reading one costs as much as reading all. Axis: B = blocks."""

    first_row: NDArray[np.int64]
    """[B + 1] Block b holds rows ``first_row[b] .. first_row[b + 1] - 1``."""
    size_bytes: NDArray[np.int64]
    """[B] About what holding a block takes."""
    fetched: bool
    """Whether blocks come over a network."""
    together: int | None = None
    """Blocks that are to be shuffled together; 0: all; ``None``: as many as can be held."""


class Source(ABC):
    """Rows of one kind of data, addressed by number. Picklable; files are opened lazily, once a process."""

    name: str
    """What messages call it: usually the path or pattern it was opened from."""
    divisible: ClassVar[bool] = True
    """Whether a row may be cut: not where its tokens belong to media."""

    @abstractmethod
    def __len__(self) -> int:
        """Rows, empty and null ones included."""

    @abstractmethod
    def lengths(self) -> NDArray[np.int64]:
        """[S] Tokens of each row; 0 for empty and null rows. Raises ValueError naming file and row."""

    def loss_tokens(self) -> NDArray[np.int64]:
        """[S] Labels of each row that count in the loss; all but the first token for plain text."""
        return np.maximum(self.lengths() - 1, 0)

    @property
    def trains_on_all(self) -> bool:
        """Whether all tokens but each row's first count in the loss, so that no array has to say so."""
        return type(self).loss_tokens is Source.loss_tokens

    @property
    def knows_loss_tokens(self) -> bool:
        """Whether `loss_tokens` is what the labels say, without reading them; else the loader counts."""
        return True

    def phases(self) -> Mapping[str, NDArray[np.int64]]:
        """Work of each row for other parts of the model, [S] units by name: ``{"vision": patches}``."""
        return {}

    def media(self) -> Mapping[str, NDArray[np.bool_]]:
        """Which rows have media, [S] by kind: ``{"image": ..., "audio": ...}``."""
        return {}

    def fillers(self) -> Mapping[str, Rows]:
        """By kind, one sequence of the smallest medium alone, without a label, for ranks that have none."""
        return {}

    def joins(self) -> Mapping[str, Join]:
        """Columns of arrays that become inputs of the batch, and how; other columns stay lists."""
        return {}

    def blocks(self) -> Blocks | None:
        """How rows lie together, for the order of a shuffled epoch; ``None``: any row costs alike."""
        return None

    @abstractmethod
    def read(self, rows: NDArray[np.int64]) -> Rows:
        """The payload of ``rows``, in the order asked for."""

    @abstractmethod
    def origin(self, row: int) -> str:
        """Where a row comes from, for messages: ``corpus.parquet, row 17``."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Changes when the data does; a saved loader state is checked against it."""

    def __getitem__(self, row: int) -> dict[str, Any]:
        """One row, as map-style torch data sets give it."""
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Several rows at once: what torch's loader asks for, a batch at a time."""
        index = np.asarray(rows, np.int64)
        size = len(self)
        if index.size and not -size <= index.min() <= index.max() < size:
            raise IndexError(f"{self.name} has {size} rows, asked for {index.min()}..{index.max()}")
        return samples_of(self.read(index % size if size else index))


def samples_of(rows: Rows) -> list[dict[str, Any]]:
    """One dict a row: ``input_ids`` int64, ``labels`` where there are any, and the further columns."""
    import torch  # only here, so that reading needs no torch

    bounds = rows.offsets.tolist()
    tokens = torch.from_numpy(np.asarray(rows.input_ids, dtype=np.int64))
    labels = None if rows.labels is None else torch.from_numpy(np.asarray(rows.labels, dtype=np.int64))
    samples: list[dict[str, Any]] = []
    for i in range(len(bounds) - 1):
        sample: dict[str, Any] = {name: values[i] for name, values in rows.columns.items()}
        sample["input_ids"] = tokens[bounds[i] : bounds[i + 1]]
        if labels is not None:
            sample["labels"] = labels[bounds[i] : bounds[i + 1]]
        samples.append(sample)
    return samples
