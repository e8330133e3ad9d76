"""What travels between the processes of the data plane: arrays that Ray hands on without copying."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loaders.batches.collate import Packed, TokenRows
from loaders.batches.reader import place_of
from loaders.batches.shares import Share
from loaders.faults import Fault


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A dense CPU tensor as an array: pickled as it is, torch would copy it into the message."""

    values: NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Parcel:
    """A micro-batch on its way to a rank. Axes: T = its tokens, n = sequences.

    It is the same for all ranks that share the micro-batch: what differs between them is in their shares.
    """

    tokens: NDArray[np.integer[Any]]
    """[T] Token ids."""
    labels: NDArray[np.integer[Any]] | None
    columns: Mapping[str, list[Any]]
    inputs: Mapping[str, Any] | None
    pad_to: tuple[int, ...]
    features: Mapping[str, NDArray[Any]]
    token_rows: Mapping[str, TokenRows]
    counts: Mapping[str, int]
    faults: tuple[Fault, ...]
    seq_lengths: NDArray[np.int32]
    """[n] Tokens of each sequence, fillers included."""
    num_loss_tokens: int

    @property
    def size_bytes(self) -> int:
        """Bytes of its arrays, about."""
        arrays = [self.tokens, *self.features.values(), *(rows.values for rows in self.token_rows.values())]
        if self.labels is not None:
            arrays.append(self.labels)
        arrays += [value.values for value in (self.inputs or {}).values() if isinstance(value, Tensor)]
        return sum(array.nbytes for array in arrays)


def to_parcel(packed: Packed) -> Parcel:
    """A micro-batch without what belongs to one rank."""
    return Parcel(
        tokens=packed.tokens,
        labels=packed.labels,
        columns=dict(packed.columns),
        inputs=None
        if packed.inputs is None
        else {name: _as_array(value) for name, value in packed.inputs.items()},
        pad_to=packed.pad_to,
        features={name: value.numpy() for name, value in packed.features.items()},
        token_rows=dict(packed.token_rows),
        counts=dict(packed.counts),
        faults=packed.faults,
        seq_lengths=packed.place.seq_lengths,
        num_loss_tokens=packed.place.num_loss_tokens,
    )


def to_packed(parcel: Parcel, share: Share) -> Packed:
    """The micro-batch of one rank.

    Received arrays are read-only views of memory that other ranks may look at too. Tokens and labels are
    copied where they are laid out; what becomes a tensor as it is, is copied here, since torch knows no
    read-only tensors and a user may write into a batch.
    """
    place = place_of(share)
    return Packed(
        place=place.with_(seq_lengths=parcel.seq_lengths.copy(), num_loss_tokens=parcel.num_loss_tokens),
        tokens=parcel.tokens,
        labels=parcel.labels,
        columns={name: [_own(value) for value in values] for name, values in parcel.columns.items()},
        inputs=None
        if parcel.inputs is None
        else {name: _as_tensor(value) for name, value in parcel.inputs.items()},
        pad_to=parcel.pad_to,
        features={name: torch.from_numpy(array.copy()) for name, array in parcel.features.items()},
        token_rows=parcel.token_rows,
        counts=parcel.counts,
        faults=parcel.faults,
    )


def _own(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _as_array(value: Any) -> Any:
    dense = isinstance(value, torch.Tensor) and value.layout == torch.strided and value.device.type == "cpu"
    if not dense or value.dtype == torch.bfloat16 or value.requires_grad or type(value) is not torch.Tensor:
        return value
    return Tensor(value.numpy())


def _as_tensor(value: Any) -> Any:
    return torch.from_numpy(value.values.copy()) if isinstance(value, Tensor) else value
