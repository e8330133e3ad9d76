"""One rank of a job, as a process: ``python -m benchmarks._ray_rank KIND FOLDER RANK RANKS STEPS [ADDRESS]``.

It prints its memory before it has a loader, goes ``STEPS`` steps that take as long as those of a fast model,
says so, and waits with its loader alive until its input is closed.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch.utils.data

from balancer import Topology
from benchmarks._processes import pss_bytes
from loaders import DataLoader, Mixture, open_source

SAMPLES = 128
"""Of a rank and step."""
MAX_TOKENS = 16_384
WORKERS = 2
STEP_S = 0.5
"""Of training on 128 samples of 1,024 tokens: 260,000 tokens a second and rank, which is fast. Steps without
any time would have as many readers as CPUs."""


class Files(torch.utils.data.Dataset[np.ndarray]):
    """What one writes by hand: a file of each source, opened in each worker, its row groups kept decoded."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.opened: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.paths) * 2000

    def __getitem__(self, place: tuple[int, int]) -> np.ndarray:
        source, row = place
        if source not in self.opened:
            column = pq.ParquetFile(self.paths[source]).read(["input_ids"])["input_ids"].combine_chunks()
            self.opened[source] = column.values.to_numpy(), column.offsets.to_numpy()
        tokens, offsets = self.opened[source]
        return tokens[offsets[row] : offsets[row + 1]]


class Places(torch.utils.data.Sampler[tuple[int, int]]):
    """Sources drawn alike, rows in order; each rank has rows of its own."""

    def __init__(self, sources: int, rank: int, ranks: int) -> None:
        self.sources, self.rank, self.ranks = sources, rank, ranks

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for number in itertools.count():
            row = number // self.sources * self.ranks + self.rank
            yield number % self.sources, row % 2000


def batches(kind: str, folder: Path, rank: int, ranks: int, address: str | None) -> Iterator[Any]:
    paths = sorted(folder.glob("*.parquet"))
    if kind == "torch":
        loader: Any = torch.utils.data.DataLoader(
            Files(paths), SAMPLES, sampler=Places(len(paths), rank, ranks), num_workers=WORKERS,
            collate_fn=np.concatenate,
        )  # fmt: skip
        yield from loader
        return
    sources = {path.stem: open_source(str(path)) for path in paths}
    here: dict[str, Any] = (
        {"engine": "ray", "address": address} if kind == "ray" else {"num_workers": WORKERS}
    )
    loader = DataLoader(
        Mixture(sources, by="samples", seed=0),
        batch_size=SAMPLES, shuffle=True, max_tokens=MAX_TOKENS, topology=Topology(ranks=ranks), rank=rank,
        seed=0, **here,
    )  # fmt: skip
    for batch in loader:
        if batch.last_in_step:
            yield batch


def main() -> None:
    kind, folder, rank, ranks, steps, *address = sys.argv[1:]
    if kind == "ray":
        import loaders.ray_engine.engine  # noqa: F401  (code is not what is measured)
    print(json.dumps({"before": pss_bytes(os.getpid())}), flush=True)
    given = batches(kind, Path(folder), int(rank), int(ranks), address[0] if address else None)
    for _ in itertools.islice(given, int(steps)):
        time.sleep(STEP_S)
    print(json.dumps({"steps": int(steps)}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
