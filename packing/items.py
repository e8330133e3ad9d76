"""What is packed: samples after the rule for empty and over-long ones has been applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packing.checks import exact_total

OVERSIZE = ("error", "drop", "truncate", "truncate_left", "split")

Lengths = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Items:
    """Samples, or pieces of samples, that fit into a pack. Axis: I = items; S = samples given.

    Without splits there is one item a sample, in the same order.
    """

    lengths: Lengths
    """[I] tokens, 0 for an item that is not packed (an empty or dropped sample)."""
    sample: NDArray[np.int64] | None
    """[I] sample of each item; None where item i is sample i."""
    start: NDArray[np.int64] | None
    """[I] first token of the item within its sample; None where all start at 0."""
    num_samples: int
    """S: samples given."""
    counts: Mapping[str, int]
    """``kept + dropped + empty == S``; ``truncated`` and ``split`` say how many of the kept were cut."""
    lost_tokens: int
    """Tokens that were dropped or cut off; tokens in packs + lost tokens = tokens given."""


def as_lengths(lengths: ArrayLike) -> Lengths:
    """[S] int32 or int64, contiguous, read-only or not; other integers are widened, anything else refused."""
    array = np.asarray(lengths)
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, np.int64)
    if array.ndim != 1:
        raise ValueError(f"lengths must have one axis, [samples]; got shape {array.shape}.")
    if array.dtype.kind not in "iu":
        raise ValueError(
            f"lengths must be integers (tokens of each sample); got dtype {array.dtype}. "
            "Round or cast them first, so that no token is gained or lost unseen."
        )
    if array.dtype in (np.dtype(np.int32), np.dtype(np.int64)):
        return np.ascontiguousarray(array)
    if array.dtype.itemsize == 8 and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"lengths must fit in 64 bits with a sign; the largest is {array.max()}.")
    return np.ascontiguousarray(array, dtype=np.int32 if array.dtype.itemsize < 4 else np.int64)


def fitting(lengths: Lengths, longest: int, oversize: str, outside: int, empty: int) -> Items:
    """Apply ``oversize`` to samples above ``longest`` tokens.

    Args:
        lengths: [S] tokens of each sample.
        longest: most tokens of one item.
        oversize: one of ``OVERSIZE``.
        outside: samples that are negative or above ``longest``, as the histogram counted them.
        empty: samples of length 0.
    """
    num_samples = int(lengths.size)
    if outside == 0:
        return _items(lengths, num_samples, empty=empty)
    negative = np.flatnonzero(lengths < 0)
    if negative.size:
        row = int(negative[0])
        raise ValueError(
            f"{negative.size} of {num_samples} lengths are negative: lengths must be 0 or more tokens, "
            f"row {row} has {lengths[row]}. Check how they were counted."
        )
    long = lengths > longest
    if oversize == "error":
        row = int(np.argmax(long))
        raise ValueError(
            f"{outside} of {num_samples} samples cannot be packed: lengths must be at most {longest} tokens, "
            f"row {row} has {lengths[row]}. Raise max_tokens, or choose "
            "oversize='drop', 'truncate' or 'split'."
        )
    too_many = lengths[long].astype(np.int64) - longest
    if oversize == "drop":
        lost = exact_total(too_many) + outside * longest
        return _items(np.where(long, 0, lengths), num_samples, empty=empty, dropped=outside, lost_tokens=lost)
    if oversize == "truncate":
        cut = np.minimum(lengths, longest)
        return _items(cut, num_samples, empty=empty, truncated=outside, lost_tokens=exact_total(too_many))
    if oversize == "truncate_left":
        start = np.zeros(num_samples, np.int64)
        start[long] = too_many
        cut = np.minimum(lengths, longest)
        return _items(
            cut, num_samples, start=start, empty=empty, truncated=outside, lost_tokens=exact_total(too_many)
        )
    return _split(lengths, longest, split=outside, empty=empty)


def _items(
    lengths: Lengths,
    num_samples: int,
    *,
    sample: NDArray[np.int64] | None = None,
    start: NDArray[np.int64] | None = None,
    empty: int = 0,
    dropped: int = 0,
    truncated: int = 0,
    split: int = 0,
    lost_tokens: int = 0,
) -> Items:
    counts = {
        "kept": num_samples - empty - dropped,
        "dropped": dropped,
        "truncated": truncated,
        "split": split,
        "empty": empty,
    }
    return Items(
        lengths=lengths.astype(lengths.dtype, copy=False),
        sample=sample,
        start=start,
        num_samples=num_samples,
        counts=counts,
        lost_tokens=lost_tokens,
    )


def _split(lengths: Lengths, longest: int, *, split: int, empty: int) -> Items:
    """Full pieces of ``longest`` tokens and a last, shorter one; an empty sample stays one empty item."""
    pieces = np.maximum(-(-lengths.astype(np.int64) // longest), 1)
    sample = np.repeat(np.arange(lengths.size, dtype=np.int64), pieces)
    first_item = np.cumsum(pieces) - pieces
    start = (np.arange(sample.size, dtype=np.int64) - first_item[sample]) * longest
    piece = np.minimum(lengths[sample] - start, longest).astype(lengths.dtype)
    return _items(piece, int(lengths.size), sample=sample, start=start, empty=empty, split=split)


def without(items: Items, dropped: NDArray[np.bool_]) -> Items:
    """Items with some more dropped. dropped: [I], only items with tokens; not for split samples."""
    counts = dict(items.counts)
    counts["dropped"] += int(dropped.sum())
    counts["kept"] -= int(dropped.sum())
    return replace(
        items,
        lengths=np.where(dropped, 0, items.lengths),
        counts=counts,
        lost_tokens=items.lost_tokens + int(items.lengths[dropped].sum(dtype=np.int64)),
    )
