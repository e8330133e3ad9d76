"""Streams whose tokens tell their place, and what a step over them holds."""

from __future__ import annotations

import itertools

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info


class Stream(IterableDataset):
    """Samples of the given lengths; token t of sample r is ``1000 * r + t``. Workers share them out."""

    def __init__(self, lengths, masked=False):
        self.lengths = lengths
        self.masked = masked
        self.reads = 0

    def __iter__(self):
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for row in range(first, len(self.lengths), step):
            yield self.sample(row)

    def sample(self, row):
        self.reads += 1
        tokens = 1000 * row + np.arange(self.lengths[row])
        sample = {"input_ids": tokens, "key": f"sample {row}"}
        if self.masked:
            sample["labels"] = np.where(np.arange(tokens.size) % 3, tokens, -100)
        return sample


class Stateful(Stream):
    """The same, with a state."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.at = 0

    def __iter__(self):
        while self.at < len(self.lengths):
            self.at += 1
            yield self.sample(self.at - 1)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Endless(IterableDataset):
    def __iter__(self):
        for row in itertools.count():
            yield [row] * (1 + row % 13)


def contents(steps):
    """What a step is made of: everything that training would see."""
    return [
        [(batch.step, batch["input_ids"].tolist(), batch["labels"].tolist()) for batch in step]
        for step in steps
    ]
