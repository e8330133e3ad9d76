"""What one pass over all rows of a source tells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Reject:
    """A row, or a file as a whole, that was left out because it cannot be used."""

    origin: str
    reason: str
    row: int
    """Row of the source; of a whole file ``-1 - number of the file``."""

    def __str__(self) -> str:
        return f"{self.origin}: {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scan:
    """Axis: S = rows."""

    lengths: NDArray[np.int64]
    """[S] Tokens; 0 for empty, null and rejected rows."""
    loss_tokens: NDArray[np.int64] | None
    """[S] Labels that count; None: all tokens but each row's first."""
    num_null: int
    rejects: tuple[Reject, ...]
