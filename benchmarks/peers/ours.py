"""evenload's own loader, and the bare gather that no loader can beat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.peers.documents import FILE, columns
from benchmarks.peers.measure import Epoch

PACK_TOKENS = 1 << 18
"""A step of 512 documents in one micro-batch, or two."""


def evenload(folder: Path, documents: int, workers: int) -> Epoch:
    from loaders import DataLoader, open_source

    loader = DataLoader(
        open_source(str(folder / FILE)), batch_size=documents, shuffle=True, max_tokens=PACK_TOKENS,
        num_workers=workers, persistent_workers=workers > 0,
    )  # fmt: skip

    def epoch() -> Iterator[tuple[int, int]]:
        for batch in loader:
            yield len(batch.sample_ids), batch["input_ids"].shape[1]

    return epoch


def gather(folder: Path, documents: int, workers: int) -> Epoch:
    """Random documents put end to end by numpy, their order known before."""
    del workers
    tokens, offsets = columns(folder)
    order = np.random.default_rng(0).permutation(offsets.size - 1)

    def epoch() -> Iterator[tuple[int, int]]:
        for first in range(0, order.size, documents):
            rows = order[first : first + documents]
            pairs = zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True)
            yield rows.size, np.concatenate([tokens[start:end] for start, end in pairs]).size

    return epoch
