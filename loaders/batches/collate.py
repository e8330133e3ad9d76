"""Samples laid end to end: the flat layout that variable-length attention reads.

Two stages, so that little travels between processes: a worker reads tokens (`Packed`, token ids in the
source's own width); the training process lays out labels, positions and borders from them (`to_batch`).
Tokens travel in memory that both share (`loaders.workers.slots`). Finished int64 tensors would be nine times
the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from balancer.sharding import Shard, shard
from loaders.batches import _kernels
from loaders.batches.batch import Batch, Place
from loaders.batches.labels import IGNORED
from loaders.batches.recycle import BATCHES
from loaders.faults import Fault
from loaders.workers.slots import parcel
from packing._rows import extremes

DUMMY_TOKEN = 0
"""Id of an idle rank's only token, and of padding; any model has it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenRows:
    """Values beside the tokens: several axes of positions, numbers of features."""

    values: NDArray[np.integer[Any]]
    """[K, T] K rows; the batch gets int64[K, 1, T'], or int64[1, T'] of a single one."""
    fill: int | None
    """What padding holds; ``None``: it counts up as positions do."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Packed:
    """A micro-batch as it leaves a worker. Axes: T = its tokens, N = samples or pieces, n = sequences."""

    place: Place
    tokens: NDArray[np.integer[Any]]
    """[T] Token ids, sample after sample."""
    labels: NDArray[np.integer[Any]] | None
    """[T] Unshifted labels; ``None``: every token but a sample's first is a label."""
    columns: Mapping[str, list[Any]]
    """Further columns of the samples, N values each."""
    inputs: Mapping[str, Any] | None
    """What a user's own ``collate_fn`` made of the samples; then there are no tokens."""
    pad_to: tuple[int, ...]
    """Allowed token counts of a rank's batch, rising; empty: any."""
    features: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Joined arrays of the samples that become inputs as they are: ``pixel_values``."""
    token_rows: Mapping[str, TokenRows] = field(default_factory=dict)
    """Further inputs with a value for each token; ``position_ids`` among them replaces the plain one."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What happened to the samples when they were read, for the loader's metrics."""
    faults: tuple[Fault, ...] = ()
    """Samples that could not be read, for the loader to count and write down."""

    def __reduce__(self) -> tuple[Any, ...]:
        """What a worker sends: tokens and labels travel by themselves, in shared memory if possible."""
        arrays = [self.tokens] if self.labels is None else [self.tokens, self.labels]
        rest = {name: getattr(self, name) for name in _REST}
        return _unpacked, (parcel(arrays), rest)

    def pin_memory(self, device: Any = None) -> Batch:
        """Called in torch's pinning thread, which so does the laying out as well."""
        return self.to_batch().pin_memory(device)

    def to_batch(self) -> Batch:
        """The finished batch of this rank."""
        if self.inputs is not None:
            return self._batch(self.inputs, self.place)
        if self.place.is_dummy and not self.tokens.size:
            return self._batch(_dummy(self.pad_to), self.place)
        inputs, num_loss_tokens = lay_out(
            self.tokens,
            self.place.seq_lengths,
            self.labels,
            degree=self.place.cp_degree,
            cp_rank=self.place.cp_rank,
            pad_to=self.pad_to,
            token_rows=self.token_rows,
        )
        inputs.update(self.features)
        place = self.place
        if place.cp_degree > 1:
            place = place.with_(num_loss_tokens=num_loss_tokens)
        return self._batch(inputs, place)

    def _batch(self, inputs: Mapping[str, Any], place: Place) -> Batch:
        batch = Batch(inputs, place=place, columns=self.columns)
        batch.counts = self.counts
        if self.faults:
            batch.faults = self.faults
        return batch


_REST = tuple(name for name in Packed.__slots__ if name not in ("tokens", "labels"))


def _unpacked(arrays: Sequence[NDArray[np.integer[Any]]], rest: Mapping[str, Any]) -> Packed:
    return Packed(tokens=arrays[0], labels=arrays[1] if len(arrays) > 1 else None, **rest)


def lay_out(
    tokens: NDArray[np.integer[Any]],
    seq_lengths: NDArray[np.int32],
    labels: NDArray[np.integer[Any]] | None = None,
    *,
    degree: int = 1,
    cp_rank: int = 0,
    pad_to: Sequence[int] = (),
    token_rows: Mapping[str, TokenRows] = MappingProxyType({}),
) -> tuple[dict[str, Any], int]:
    """Model inputs of one rank, and how many of its labels count in the loss.

    Args:
        tokens: [T] ids, sample after sample.
        seq_lengths: [n] tokens of each sample, at least 1 each.
        labels: [T] unshifted labels, -100 where masked; ``None``: all tokens are labels.
        degree: ranks that share the sequences, cut in zigzag (`balancer.sharding`).
        cp_rank: this rank's place among them.
        pad_to: allowed token counts, rising. The tail is a sequence of its own without labels.
        token_rows: further inputs with values for each token, cut and padded with them.

    Returns:
        ``input_ids``, ``labels``, ``shift_labels``, ``position_ids`` int64[1, T'], ``seq_idx`` int32[1, T'],
        ``cu_seq_lens_q/k`` int32[n' + 1] and ``max_length_q/k``, T' being this rank's tokens.

    Cost: one pass over T.
    """
    offsets = _offsets(seq_lengths)
    rows, num_loss_tokens = _rows(tokens, offsets, labels)
    cut = None
    if degree > 1:
        cut = shard(seq_lengths, degree, cp_rank)
        rows, offsets = _shard(rows, cut)
        num_loss_tokens = int(np.count_nonzero(rows["shift_labels"] != IGNORED))
    rows, offsets = _pad(rows, offsets, pad_to)
    inputs = _inputs(rows, offsets)
    for name, own in token_rows.items():
        inputs[name] = _token_rows(own, cut, rows["position_ids"])
    return inputs, num_loss_tokens


def _offsets(lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    offsets = np.zeros(lengths.size + 1, np.int64)
    lengths.cumsum(out=offsets[1:])
    return offsets


def _rows(
    tokens: NDArray[np.integer[Any]], offsets: NDArray[np.int64], labels: NDArray[np.integer[Any]] | None
) -> tuple[dict[str, NDArray[Any]], int]:
    size = int(offsets[-1])
    padded_labels = BATCHES.empty(size + 1, np.int64)
    rows: dict[str, NDArray[Any]] = {
        "input_ids": BATCHES.empty(size, np.int64),
        "labels": padded_labels[:-1],
        "shift_labels": padded_labels[1:],  # the same memory: the two cannot disagree, and half is written
        "position_ids": BATCHES.empty(size, np.int64),
        "seq_idx": BATCHES.empty(size, np.int32),
    }
    targets = tokens if labels is None else labels
    _kernels.lay_out(
        tokens, targets, offsets, rows["input_ids"], padded_labels, rows["position_ids"], rows["seq_idx"]
    )
    if labels is None:
        return rows, size - (offsets.size - 1)
    return rows, int(np.count_nonzero(rows["shift_labels"] != IGNORED))


_FILL = {"input_ids": DUMMY_TOKEN, "labels": IGNORED, "shift_labels": IGNORED}


def _shard(rows: dict[str, NDArray[Any]], cut: Shard) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
    """Tokens of one rank; padding continues its sample's positions and carries no label."""
    held = {name: np.where(cut.real, rows[name][cut.index], fill) for name, fill in _FILL.items()}
    held["position_ids"] = cut.positions
    held["seq_idx"] = np.repeat(np.arange(cut.offsets.size - 1, dtype=np.int32), np.diff(cut.offsets))
    return held, cut.offsets


def _token_rows(rows: TokenRows, cut: Shard | None, positions: NDArray[np.int64]) -> torch.Tensor:
    """Values of this rank's tokens, padded like them. positions: [T'] the plain ones, of padding as well."""
    fill = positions if rows.fill is None else np.full(positions.size, rows.fill, np.int64)
    out = np.tile(fill, (rows.values.shape[0], 1))
    if cut is None:
        out[:, : rows.values.shape[1]] = rows.values
    else:
        real = np.flatnonzero(cut.real)
        out[:, real] = rows.values[:, cut.index[real]]
    joined = torch.from_numpy(out)
    return joined if out.shape[0] == 1 else joined.unsqueeze(1)


def _pad(
    rows: dict[str, NDArray[Any]], offsets: NDArray[np.int64], pad_to: Sequence[int]
) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
    """A tail of padding up to the next allowed token count."""
    held = int(offsets[-1])
    target = next((size for size in pad_to if size >= held), held)
    if target == held:
        return rows, offsets
    tail = target - held
    tails = {name: np.full(tail, fill, np.int64) for name, fill in _FILL.items()}
    tails["position_ids"] = np.arange(tail)
    tails["seq_idx"] = np.full(tail, offsets.size - 1, np.int32)
    return {name: np.concatenate([rows[name], tails[name]]) for name in rows}, np.append(offsets, target)


def _inputs(rows: Mapping[str, NDArray[Any]], offsets: NDArray[np.int64]) -> dict[str, Any]:
    inputs: dict[str, Any] = {name: torch.from_numpy(row[None]) for name, row in rows.items()}
    borders = torch.from_numpy(offsets.astype(np.int32))
    longest = extremes(offsets[1:] - offsets[:-1])[1] if offsets.size > 1 else 0
    inputs["cu_seq_lens_q"] = inputs["cu_seq_lens_k"] = borders
    inputs["max_length_q"] = inputs["max_length_k"] = longest
    return inputs


def _dummy(pad_to: Sequence[int]) -> dict[str, Any]:
    """One token that trains nothing, so that a rank without work still takes part in collectives."""
    rows: dict[str, NDArray[Any]] = {name: np.array([fill], np.int64) for name, fill in _FILL.items()}
    rows["position_ids"] = np.zeros(1, np.int64)
    rows["seq_idx"] = np.zeros(1, np.int32)
    return _inputs(*_pad(rows, np.array([0, 1], np.int64), pad_to))
