"""Batches of all ranks, local and on a cluster, and whether they are equal to the last bit."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from balancer import Topology
from loaders import Batch, DataLoader, Mixture
from loaders.batches.batch import Place
from tests.loaders.arrays import ArraySource, MaskedSource


class Brittle(ArraySource):
    """Some rows cannot be read, and some end the process that reads them."""

    def __init__(
        self, lengths: Sequence[int], *, bad: Sequence[int] = (), deadly: Sequence[int] = ()
    ) -> None:
        super().__init__(lengths, name="brittle")
        self.bad, self.deadly = tuple(bad), tuple(deadly)
        self.home = os.getpid()

    def read(self, rows: Any) -> Any:
        if os.getpid() != self.home and any(int(row) in self.deadly for row in rows):
            os._exit(1)
        if any(int(row) in self.bad for row in rows):
            raise KeyError("missing entry")
        return super().read(rows)


def be_patient(change: Callable[[str, float], None]) -> None:
    """Where actors, answers or names take minutes, the machine is busy and nothing lost."""
    for name in ("engine.PATIENCE_S", "watching.SILENCE_S", "plane.ENDING_S"):
        change(f"loaders.ray_engine.{name}", 900.0)
    change("loaders.ray_engine.status.ANSWER_S", 120.0)


def be_patient_here() -> None:
    """The same in a program of its own."""

    def change(name: str, seconds: float) -> None:
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(module), constant, seconds)

    be_patient(change)


def lengths(count: int, seed: int = 0, longest: int = 90) -> Any:
    return np.random.default_rng(seed).integers(1, longest, count)


def mixture(bad: Sequence[int] = (3, 40)) -> Mixture:
    """Plain and masked rows, and some that cannot be read."""
    sources = {
        "plain": ArraySource(lengths(120), name="plain"),
        "masked": MaskedSource(lengths(60, 1, 60)),
        "brittle": Brittle(lengths(60, 2), bad=bad),
    }
    return Mixture(sources, {"plain": 0.5, "masked": 0.3, "brittle": 0.2}, seed=3)


OPTIONS: dict[str, Any] = {
    "batch_size": 8,
    "shuffle": True,
    "max_tokens": 64,
    "cp_degrees": (1, 2),
    "oversize": "split",
    "on_error": "skip",
    "max_errors": 1.0,
    "seed": 7,
}


def loader_of(dataset: Any, rank: int, ranks: int = 2, **changes: Any) -> DataLoader[Batch]:
    return DataLoader(dataset, topology=Topology(ranks=ranks), rank=rank, **OPTIONS | changes)


def check_equal(ours: Sequence[Batch], theirs: Sequence[Batch]) -> None:
    """Inputs with their types, places, columns, counts and faults."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert list(one) == list(other)
        for name, value in one.items():
            same_value(value, other[name], name)
        for field in dataclasses.fields(Place):
            same_value(getattr(one.place, field.name), getattr(other.place, field.name), field.name)
        assert one.columns == other.columns
        assert dict(one.counts) == dict(other.counts)
        assert [(fault.source, fault.row, fault.error) for fault in one.faults] == [
            (fault.source, fault.row, fault.error) for fault in other.faults
        ]


def same_value(one: Any, other: Any, name: str) -> None:
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, name
        assert torch.equal(one, other), name
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, name
        np.testing.assert_array_equal(one, other, err_msg=name)
    else:
        assert one == other, name


def digest(batch: Batch) -> str:
    """Of all tensors and sample ids."""
    hashed = hashlib.blake2b(batch.sample_ids.tobytes(), digest_size=8)
    for name, value in sorted(batch.items()):
        hashed.update(name.encode() + (value.numpy().tobytes() if torch.is_tensor(value) else b"%d" % value))
    return hashed.hexdigest()
