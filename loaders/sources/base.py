"""What every source offers: lengths before anything is read, then rows by number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray


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


class Source(ABC):
    """Rows of one kind of data, addressed by number. Picklable; files are opened lazily, once a process."""

    name: str
    """What messages call it: usually the path or pattern it was opened from."""

    @abstractmethod
    def __len__(self) -> int:
        """Rows, empty and null ones included."""

    @abstractmethod
    def lengths(self) -> NDArray[np.int64]:
        """[S] Tokens of each row; 0 for empty and null rows. Raises ValueError naming file and row."""

    def loss_tokens(self) -> NDArray[np.int64]:
        """[S] Labels of each row that count in the loss; all but the first token for plain text."""
        return np.maximum(self.lengths() - 1, 0)

    @abstractmethod
    def read(self, rows: NDArray[np.int64]) -> Rows:
        """The payload of ``rows``, in the order asked for."""

    @abstractmethod
    def origin(self, row: int) -> str:
        """Where a row comes from, for messages: ``corpus.parquet, row 17``."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Changes when the data does; a saved loader state is checked against it."""
