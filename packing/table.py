"""What is known of samples before any of them is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SampleTable:
    """Metadata of samples, one column array each. Axis: S = samples (or pieces of samples).

    Data only: picklable, no payload. A piece of a split sample is a row of its own.
    """

    num_tokens: NDArray[np.int64]
    """[S] Tokens of the language model's sequence."""
    source: NDArray[np.int32]
    """[S] Number of the source in its mixture."""
    row: NDArray[np.int64]
    """[S] Row within the source."""
    start: NDArray[np.int64]
    """[S] First token of the piece within its row; 0 unless the sample was split."""
    num_loss_tokens: NDArray[np.int64]
    """[S] Labels that count in the loss: ``num_tokens - 1`` for plain text."""
    phases: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """Units of work of further phases, [S] each: ``{"vision": patches, "audio": frames}``."""

    @classmethod
    def from_lengths(cls, lengths: NDArray[np.int64]) -> SampleTable:
        """Plain text of one source, in row order. lengths: [S] tokens of each sample."""
        num_tokens = np.asarray(lengths, dtype=np.int64)
        rows = np.arange(num_tokens.size, dtype=np.int64)
        return cls(
            num_tokens=num_tokens,
            source=np.zeros(num_tokens.size, np.int32),
            row=rows,
            start=np.zeros(num_tokens.size, np.int64),
            num_loss_tokens=np.maximum(num_tokens - 1, 0),
        )

    def __len__(self) -> int:
        return int(self.num_tokens.size)

    def take(self, index: NDArray[np.int64] | slice) -> SampleTable:
        """The rows at ``index``, in that order; of a slice, views of them."""
        return SampleTable(
            num_tokens=self.num_tokens[index],
            source=self.source[index],
            row=self.row[index],
            start=self.start[index],
            num_loss_tokens=self.num_loss_tokens[index],
            phases={name: units[index] for name, units in self.phases.items()},
        )
