"""Torch's loader over hand-written data sets, and what is built on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.documents import FILE, Batched, Flat
from benchmarks.peers.measure import Epoch

Collate = Callable[[list[Any]], Any]


def tokens_only(rows: list[np.ndarray]) -> tuple[int, np.ndarray]:
    """(documents, their tokens end to end): the least that a packed batch is."""
    return len(rows), np.concatenate(rows)


def packed(rows: list[np.ndarray]) -> tuple[int, dict[str, Any]]:
    """The whole packed batch that variable-length attention wants, in numpy."""
    import torch

    lengths = np.array([row.size for row in rows], np.int64)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    ids = np.concatenate(rows).astype(np.int64)
    labels = ids.copy()
    labels[starts] = -100
    shifted = np.full(ids.size, -100, np.int64)
    shifted[:-1] = labels[1:]
    borders = np.concatenate([[0], ends]).astype(np.int32)
    batch = {
        "input_ids": ids,
        "labels": labels,
        "shift_labels": shifted,
        "position_ids": np.arange(ids.size) - np.repeat(starts, lengths),
        "seq_idx": np.repeat(np.arange(lengths.size, dtype=np.int32), lengths),
        "cu_seq_lens_q": borders,
    }
    return len(rows), {name: torch.from_numpy(row) for name, row in batch.items()}


def workers_of(workers: int) -> dict[str, Any]:
    return {"num_workers": workers, "persistent_workers": workers > 0}


def sizes(loader: Any) -> Iterator[tuple[int, int]]:
    for documents, batch in loader:
        held = batch["input_ids"] if isinstance(batch, dict) else batch
        yield documents, int(held.shape[0])


def _over(kind: Any, data: Any, documents: int, workers: int, collate: Collate) -> Epoch:
    loader = kind(data, batch_size=documents, shuffle=True, collate_fn=collate, **workers_of(workers))
    return lambda: sizes(loader)


def flat(folder: Path, documents: int, workers: int) -> Epoch:
    from torch.utils.data import DataLoader

    return _over(DataLoader, Flat(folder), documents, workers, tokens_only)


def batched(folder: Path, documents: int, workers: int) -> Epoch:
    from torch.utils.data import DataLoader

    return _over(DataLoader, Batched(folder), documents, workers, tokens_only)


def whole(folder: Path, documents: int, workers: int) -> Epoch:
    from torch.utils.data import DataLoader

    return _over(DataLoader, Batched(folder), documents, workers, packed)


def stateful(folder: Path, documents: int, workers: int) -> Epoch:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return _over(StatefulDataLoader, Flat(folder), documents, workers, tokens_only)


def nodes(folder: Path, documents: int, workers: int) -> Epoch:
    from torch.utils.data import BatchSampler, RandomSampler
    from torchdata.nodes import Loader, Mapper, ParallelMapper, SamplerWrapper

    data = Batched(folder)
    sampler = BatchSampler(RandomSampler(data), documents, drop_last=False)  # type: ignore[arg-type]
    rows = SamplerWrapper(sampler)
    fetch = lambda batch: tokens_only(data.__getitems__(batch))
    read = (
        ParallelMapper(rows, fetch, num_workers=workers, method="thread") if workers else Mapper(rows, fetch)
    )
    loader = Loader(read)
    return lambda: sizes(loader)


def _join_rows(rows: list[dict[str, Any]]) -> tuple[int, np.ndarray]:
    return tokens_only([row["input_ids"] for row in rows])


def hugging_face(folder: Path, documents: int, workers: int) -> Epoch:
    import datasets
    import pyarrow as pa
    from torch.utils.data import DataLoader

    table = pa.ipc.open_file(pa.memory_map(str(folder / FILE))).read_all()
    return _over(DataLoader, datasets.Dataset(table).with_format("numpy"), documents, workers, _join_rows)
