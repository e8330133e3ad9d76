"""Order as a function: position in an epoch -> sample. No list of indices, no shuffle buffer, no state.

A keyed permutation stands for the shuffled list: a balanced Feistel network (Luby and Rackoff 1988) over the
next power of four, walked until it lands inside (Black and Rogaway 2002, "cycle walking"). It is a bijection
for any key and any size, and position 10^9 costs what position 0 costs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

ROUNDS = 6
"""Four suffice for wide halves; small sets have halves of a few bits and need more."""


class SampleOrder(Protocol):
    """What a loader asks of an order: how long an epoch is, and which sample stands at a position."""

    def size(self, epoch: int) -> int:
        """Positions of the epoch."""

    def locate(self, epoch: int, positions: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Source [N] and place within that source's usable rows [N] of each position."""


def derive(*parts: object) -> int:
    """A 64-bit key from any parts, equal on all platforms; parts of different kinds never collide."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def permute(positions: ArrayLike, size: int, key: int) -> NDArray[np.int64]:
    """Image of ``positions`` under the permutation of ``0 .. size - 1`` that ``key`` names.

    Args:
        positions: [N] each in ``0 .. size - 1``.
        size: number of things that are permuted, at least 1 where there are positions.
        key: 64 bits, from `derive`.

    Cost: O(N) time and memory, whatever ``size`` is; at most four walks are expected for each position.
    """
    from loaders.order import _kernels  # numba starts when an order is first used, not at import

    places = np.ascontiguousarray(positions, dtype=np.int64)
    if places.size and not 0 <= places.min() <= places.max() < size:
        raise ValueError(f"positions must lie in 0..{size - 1}, got {places.min()}..{places.max()}.")
    half_bits = max(1, (int(max(size - 1, 1)).bit_length() + 1) // 2)
    out = np.empty_like(places)
    _kernels.permute(places, size, half_bits, _round_keys(key), out)
    return out


def _round_keys(key: int) -> NDArray[np.uint64]:
    digest = hashlib.blake2b(key.to_bytes(8, "little"), digest_size=8 * ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


class Permutation(Protocol):
    """A shuffle of a source's usable rows other than one over all of them."""

    def permute(self, positions: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """Image of ``positions`` [N] under the permutation that ``key`` names."""


class SourceOrder:
    """One source: in row order, or shuffled anew in each epoch, by ``within`` where it is given."""

    def __init__(self, num_rows: int, *, shuffle: bool, seed: int, within: Permutation | None = None) -> None:
        self.num_rows = num_rows
        self.shuffle = shuffle
        self.seed = seed
        self.within = within

    def size(self, epoch: int) -> int:
        """Every usable row once."""
        return self.num_rows

    def locate(self, epoch: int, positions: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Source 0 and the row's place."""
        places = np.asarray(positions, dtype=np.int64)
        if self.shuffle:
            key = derive(self.seed, "source", 0, epoch)
            places = shuffled(places, self.num_rows, key, self.within)
        return np.zeros(places.size, np.int32), places


def shuffled(places: NDArray[np.int64], size: int, key: int, within: Permutation | None) -> NDArray[np.int64]:
    """Places of a source in the order that ``key`` names: over all ``size``, or as ``within`` has it."""
    return permute(places, size, key) if within is None else within.permute(places, key)


def grouped(source: NDArray[np.int32], num_sources: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Number of each source that is present, by rising number, with the places where it stands.

    A radix sort (numpy has one of 16 bits): a mask for each of 300 sources took a third of the time of
    planning 65,536 samples.
    """
    narrow = source.astype(np.uint16) if num_sources <= 1 << 16 else source
    order = np.argsort(narrow, kind="stable")
    ends = np.cumsum(np.bincount(source, minlength=num_sources))
    for number in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
        yield number, order[ends[number - 1] if number else 0 : ends[number]]
