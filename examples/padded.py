"""What most training scripts do today: torch's loader, a distributed sampler, padding to the longest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler

Sample = tuple[int, Tensor]
"""A row's number and its token ids, int64[n]."""


class TokenRows(Dataset[Sample]):
    """Rows of parquet files, one file after another."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.rows = pa.concat_tables(pq.read_table(path, columns=["input_ids"]) for path in paths)[
            "input_ids"
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Sample:
        return row, torch.from_numpy(self.rows[row].values.to_numpy().astype(np.int64))


class GivenOrderSampler(DistributedSampler[Sample]):
    """A DistributedSampler that deals a given order of samples instead of shuffling by itself."""

    def __init__(
        self, dataset: Dataset[Sample], order: Sequence[int], *, num_replicas: int, rank: int
    ) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle=False)
        self.order = order

    def __iter__(self) -> Iterator[int]:
        return iter(self.order[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return len(range(self.rank, len(self.order), self.num_replicas))


def pad(samples: list[Sample]) -> dict[str, Any]:
    """[B, L] ids, positions and labels of B samples, padded at their ends to the longest."""
    lengths = torch.tensor([tokens.numel() for _, tokens in samples])
    longest = int(lengths.max())
    input_ids = torch.zeros(len(samples), longest, dtype=torch.int64)
    shift_labels = torch.full_like(input_ids, -100)
    for place, (_, tokens) in enumerate(samples):
        input_ids[place, : tokens.numel()] = tokens
        shift_labels[place, : tokens.numel() - 1] = tokens[1:]
    return {
        "input_ids": input_ids,
        "position_ids": torch.arange(longest).expand_as(input_ids),
        "shift_labels": shift_labels,
        "lengths": lengths,
        "rows": [row for row, _ in samples],
    }
