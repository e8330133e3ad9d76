"""How arrays that belong to samples become one input of the batch, key by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Join:
    """The rule of one key. Samples without a value add nothing, except to rows of tokens."""

    axis: int = 0
    """Along which the samples' arrays are laid end to end."""
    per_token: bool = False
    """The last axis is the sample's tokens: the array is cut for context parallelism and padded with them."""
    fill: int | None = None
    """Per token, what padding and samples without a value hold; ``None``: they count up as positions do."""
    running: bool = False
    """Values of 0 and more are numbers within the sample: those of the samples before are added."""


def joins_of(tables: Sequence[Mapping[str, Join]]) -> dict[str, Join]:
    """The rules of several sources together.

    Raises:
        ValueError: two sources join the same key differently.
    """
    merged: dict[str, Join] = {}
    for table in tables:
        for key, join in table.items():
            if merged.setdefault(key, join) != join:
                raise ValueError(
                    f"sources must join {key!r} in the same way, one says {merged[key]}, another {join}"
                )
    return merged


def join_columns(
    columns: Mapping[str, list[Any]], joins: Mapping[str, Join], lengths: Sequence[int] | NDArray[np.int64]
) -> tuple[dict[str, Array], dict[str, Array], dict[str, list[Any]]]:
    """Arrays of N samples as one array a key.

    Args:
        columns: N values each.
        joins: the rules.
        lengths: [N] tokens of the samples.

    Returns:
        The joined arrays of samples, those of tokens ([..., T]), and the columns that have no rule. A key
        that no sample has a value for is left out.
    """
    features: dict[str, Array] = {}
    token_rows: dict[str, Array] = {}
    rest: dict[str, list[Any]] = {}
    for key, values in columns.items():
        join = joins.get(key)
        if join is None:
            rest[key] = values
        elif all(value is None for value in values):
            continue
        elif join.per_token:
            token_rows[key] = np.concatenate(_filled(values, join, lengths), axis=-1)
        else:
            features[key] = np.concatenate([value for value in values if value is not None], axis=join.axis)
    return features, token_rows, rest


def _filled(values: Sequence[Any], join: Join, lengths: Sequence[int] | NDArray[np.int64]) -> list[Array]:
    like = next(value for value in values if value is not None)
    arrays: list[Array] = []
    before = 0
    for value, length in zip(values, lengths, strict=True):
        if value is None:
            row = np.arange(length) if join.fill is None else np.full(length, join.fill)
            value = np.broadcast_to(row.astype(like.dtype), (*like.shape[:-1], int(length)))
        if join.running:
            count = int(value.max(initial=-1)) + 1
            value = np.where(value >= 0, value + before, value)
            before += count
        arrays.append(value)
    return arrays
