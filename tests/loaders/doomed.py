"""A training loop to be interrupted or killed: ``python -m tests.loaders.doomed READS CONTEXT``.

Prints its own process id and those of its workers once a batch of each has come.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import torch
from torch.utils.data import Dataset

from loaders import DataLoader, open_source

TOKENS = 2000


class Reads(Dataset):
    """``slow``: 20 ms a sample. ``stuck``: never, from sample 30 on.

    The training loop takes none of these: ``tensors``: through shared memory. ``unread``: more than the pipe
    holds.
    """

    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 1000

    def __getitem__(self, row):
        if self.how == "stuck" and row >= 30:
            time.sleep(1000)
        time.sleep(0.02 if self.how == "slow" else 0)
        x = torch.zeros(50_000) if self.how == "tensors" else np.zeros(50_000)
        return {"input_ids": np.arange(TOKENS), "x": x}


def stacked(samples):
    return {"x": torch.stack([sample["x"] for sample in samples])}


def main():
    how, context = sys.argv[1:3]
    source = open_source(Reads(how), length=np.full(1000, TOKENS), labels=False, carry=["x"])
    batches = iter(
        DataLoader(
            source,
            batch_size=10,
            max_tokens=10 * TOKENS,
            num_workers=2,
            multiprocessing_context=context,
            collate_fn=stacked if how == "tensors" else None,
        )
    )
    next(batches), next(batches)
    print(os.getpid(), *(worker.pid for worker in batches._reading._workers), flush=True)
    if how in ("unread", "tensors"):
        time.sleep(1000)
    for _ in batches:
        time.sleep(0.01)


if __name__ == "__main__":
    main()
