"""One rank's share of one micro-batch: a dict of model inputs that knows its place in the step."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from balancer.exchange import ExchangeTable
from balancer.sharding import shard
from loaders.faults import Fault


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Place:
    """Where a batch stands in its step, and what it holds. Axes: N = samples or pieces, n = sequences."""

    step: int
    """Optimizer step, counted from 0, going on over epochs."""
    slot: int
    """The k-th micro-batch of the step on this rank."""
    last_in_step: bool
    """Whether gradients meet after this micro-batch."""
    cp_degree: int
    """Ranks that share the micro-batch's sequences."""
    cp_rank: int
    """This rank's place among them."""
    first_rank: int
    """First data rank of the group."""
    sample_ids: NDArray[np.int64]
    """[N, 2] Source and row of each sample; [0, 2] where the rank is idle."""
    starts: NDArray[np.int64]
    """[N] First token of each piece within its row; 0 unless the sample was split."""
    seq_lengths: NDArray[np.int32]
    """[n] True tokens of each sequence of the whole micro-batch, before sharding and padding."""
    num_loss_tokens: int
    """Labels of this rank's shard that count in the loss."""
    step_loss_tokens: int
    """The same, summed over all ranks and micro-batches of the step."""
    num_ranks: int
    """Data ranks of the job."""
    step_samples: int = -1
    """Samples and pieces of the step that have labels, over all ranks; -1 where that is not known."""
    phase: str = "language"
    """The part of the model that runs on it; an encoder's name where encoders have their own assignment."""
    last_in_phase: bool = False
    """Whether it is this rank's last batch of an encoder in the step: then all ranks exchange its rows."""

    @property
    def is_dummy(self) -> bool:
        """Whether the plan has nothing for this rank here: one token, no label."""
        return len(self.sample_ids) == 0

    def with_(self, **changes: Any) -> Place:
        """A copy with some fields changed."""
        return replace(self, **changes)


PLACE_FIELDS = frozenset(field.name for field in fields(Place))


class Batch(dict[str, Any]):
    """Model inputs by name, with the attributes of `Place` and ``cp_group``.

    ``model(**batch)`` works: only inputs are items. Moving, pinning, pickling and copying keep the
    attributes; ``cp_group`` belongs to a process and does not travel through a pickle.
    """

    place: Place
    cp_group: Any
    """Process group of the ranks that share the sequences; ``None`` where ``cp_degree == 1``."""
    columns: Mapping[str, list[Any]]
    """Further columns of the samples, one value for each row of ``sample_ids``."""
    counts: Mapping[str, int] = MappingProxyType({})
    """What happened to the samples when they were read: rejected, corrected, repaired."""
    exchanges: Mapping[str, ExchangeTable] = MappingProxyType({})
    """Of an encoder's batch: where the rows of each kind of medium go in this step."""
    feature_rows: Mapping[str, slice] = MappingProxyType({})
    """Of a batch whose media are encoded elsewhere: by kind, its rows among those that this rank receives."""
    faults: tuple[Fault, ...] = ()
    """Samples that could not be read: they keep their places, tokens 0 and labels -100."""

    def __init__(
        self,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        place: Place | None = None,
        columns: Mapping[str, list[Any]] | None = None,
    ) -> None:
        super().__init__(inputs or {})
        if place is not None:
            self.place = place
        self.cp_group = None
        self.columns = dict(columns or {})

    def __getattr__(self, name: str) -> Any:
        # only what is not found otherwise comes here, so the place's fields cost no copies
        if name in PLACE_FIELDS:
            place = self.__dict__.get("place")
            if place is not None:
                return getattr(place, name)
            raise AttributeError(
                f"this Batch has no {name!r}: it was rebuilt from its items alone, which drops its place in "
                "the step. Use batch.to(), batch.pin_memory() or copy.copy(batch), which keep it."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in PLACE_FIELDS:
            super().__setattr__("place", self.place.with_(**{name: value}))
        else:
            super().__setattr__(name, value)

    def _like(self, inputs: Mapping[str, Any]) -> Batch:
        other = type(self)(inputs)
        other.__dict__.update(self.__dict__)
        return other

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """All tensors moved as `torch.Tensor.to` moves them; the rest as it is.

        A dtype is applied to floating-point tensors only, since ids and borders must stay whole numbers.
        """
        return self._like({key: _to(value, args, kwargs) for key, value in self.items()})

    def pin_memory(self, device: Any = None) -> Batch:
        """All tensors in page-locked memory, so that ``to(device, non_blocking=True)`` overlaps."""
        return self._like({key: _pin(value, device) for key, value in self.items()})

    def real_tokens(self) -> torch.Tensor:
        """bool[1, T] Tokens of samples: not alignment, ``pad_to``, filler media or a dummy's token.

        What expert routers leave out of their balance. On the device of ``input_ids``.
        """
        ids = self["input_ids"]
        mask = torch.zeros(ids.shape, dtype=torch.bool)
        own = self.seq_lengths[: len(self.sample_ids)]
        held = shard(own, self.cp_degree, self.cp_rank).real
        mask[0, : held.size] = torch.from_numpy(held)
        return mask.to(ids.device)

    def copy(self) -> Batch:
        """A shallow copy with all attributes."""
        return self._like(self)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Batch:
        return self._like({key: copy.deepcopy(value, memo) for key, value in self.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        state = {key: value for key, value in self.__dict__.items() if key != "cp_group"}
        return _restore, (type(self), dict(self), state)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()

    def __dir__(self) -> Iterator[str]:
        return iter(sorted({*super().__dir__(), *PLACE_FIELDS}))

    def __repr__(self) -> str:
        place = self.__dict__.get("place")
        inputs = ", ".join(f"{key}={_describe(value)}" for key, value in self.items())
        if place is None:
            return f"Batch({inputs})"
        where = f"step={place.step}, slot={place.slot}, last_in_step={place.last_in_step}"
        return f"Batch({where}, samples={len(place.sample_ids)}, {inputs})"


def _restore(kind: type[Batch], inputs: dict[str, Any], state: dict[str, Any]) -> Batch:
    batch = kind(inputs)
    batch.__dict__.update(state)
    return batch


def _to(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        if not value.is_floating_point():
            args = tuple(arg for arg in args if not isinstance(arg, torch.dtype))
            kwargs = {key: arg for key, arg in kwargs.items() if key != "dtype"}
            if not args and not kwargs:
                return value
        return value.to(*args, **kwargs)
    if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        return type(value)([_to(item, args, kwargs) for item in value])
    return value


def _pin(value: Any, device: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.pin_memory() if device is None else value.pin_memory(device)
    if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        return type(value)([_pin(item, device) for item in value])
    return value


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)
