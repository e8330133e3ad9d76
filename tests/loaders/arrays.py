"""A source in memory, and ways to play all ranks in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer import Topology
from loaders import Batch, DataLoader
from loaders.sources.base import Rows, Source


class ArraySource(Source):
    """Rows of the given lengths. Token t of row r is ``(1000 * r + t) % 50021``: it tells its place."""

    def __init__(self, lengths: Sequence[int], *, name: str = "arrays", masked: int | None = None) -> None:
        self.name = name
        self.row_lengths = np.asarray(lengths, dtype=np.int64)
        self.masked = masked
        self.reads = 0

    def __len__(self) -> int:
        return int(self.row_lengths.size)

    def lengths(self) -> NDArray[np.int64]:
        return self.row_lengths

    def tokens(self, row: int) -> NDArray[np.int32]:
        return ((1000 * row + np.arange(self.row_lengths[row])) % 50021).astype(np.int32)

    def labels(self, row: int) -> NDArray[np.int64]:
        labels = self.tokens(row).astype(np.int64)
        if self.masked:
            labels[:: self.masked] = -100
        return labels

    def read(self, rows: NDArray[np.int64]) -> Rows:
        self.reads += len(rows)
        parts = [self.tokens(row) for row in rows]
        labels = [self.labels(row) for row in rows]
        return Rows(
            input_ids=np.concatenate([np.zeros(0, np.int32), *parts]),
            offsets=np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64),
            labels=np.concatenate([np.zeros(0, np.int64), *labels]) if self.masked else None,
            columns={"row": list(rows)},
        )

    def origin(self, row: int) -> str:
        return f"{self.name}, row {row}"

    def fingerprint(self) -> str:
        return f"{self.name}-{self.row_lengths.tolist()}-{self.masked}"


class MaskedSource(ArraySource):
    """The same with labels, every third of them masked."""

    def __init__(self, lengths: Sequence[int], *, name: str = "masked") -> None:
        super().__init__(lengths, name=name, masked=3)

    def loss_tokens(self) -> NDArray[np.int64]:
        return np.array(
            [np.count_nonzero(self.labels(row)[1:] != -100) for row in range(len(self))], np.int64
        )


def on_all_ranks(dataset: Any, ranks: int, **arguments: Any) -> list[DataLoader]:
    """One loader a rank, all in this process."""
    topology = arguments.pop("topology", Topology(ranks=ranks))
    return [DataLoader(dataset, topology=topology, rank=rank, **arguments) for rank in range(ranks)]


def epoch_of(loader: DataLoader) -> list[list[Batch]]:
    """The batches of one iteration, step by step."""
    steps: list[list[Batch]] = [[]]
    for batch in loader:
        steps[-1].append(batch)
        if batch.last_in_step:
            steps.append([])
    assert steps[-1] == [], "the last step was not closed"
    return steps[:-1]


def ids_of(steps: Sequence[Sequence[Batch]]) -> list[list[tuple[int, int]]]:
    """(source, row) of each step's samples, sorted; a shared micro-batch counts once."""
    return [
        sorted(
            (int(source), int(row))
            for batch in step
            if batch.cp_rank == 0
            for (source, row), start in zip(batch.sample_ids, batch.starts, strict=True)
            if start == 0
        )
        for step in steps
    ]


def merged(ranks: Sequence[Sequence[Sequence[Batch]]]) -> list[list[Batch]]:
    """The batches of all ranks, step by step; all ranks must have equally many steps."""
    counts = {len(steps) for steps in ranks}
    assert len(counts) == 1, f"ranks ran {counts} steps"
    return [[batch for step in together for batch in step] for together in zip(*ranks, strict=True)]
