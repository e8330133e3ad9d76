"""Who sits in which pack: two ways to say it, by runs of equal packs or by a pack id for each item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from packing.items import Lengths

PackIds = NDArray[np.int32] | NDArray[np.int64]


def empty_ids(num_items: int, most_packs: int) -> PackIds:
    """[I] room for pack ids, 32-bit while they fit."""
    if most_packs < 2**31:
        return np.empty(num_items, np.int32)
    return np.empty(num_items, np.int64)


class Dealt(Protocol):
    """The outcome of a strategy. Axes: I = items, P = packs."""

    @property
    def num_packs(self) -> int:
        """P."""

    def ids(self) -> PackIds:
        """[I] pack of each item, -1 where it is in none."""

    def grouped(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Offsets [P + 1], and items pack after pack."""

    def totals(self, weights: NDArray[np.int64]) -> NDArray[np.int64]:
        """[P] sum of ``weights`` [I] over the items of each pack."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Runs:
    """Packs described by length, not by item. Axis: K = runs.

    Run k says: packs ``first .. first + packs - 1`` each hold ``per_pack`` items of length ``length``
    behind ``before`` others. Runs of one length are neighbours; equal items are dealt to them in item
    order. ``packs * per_pack**2 < 2**32`` and ``per_pack < 2**16``, so that dealing is exact.
    """

    length: NDArray[np.int32]
    first: NDArray[np.int64]
    packs: NDArray[np.int64]
    per_pack: NDArray[np.int32]
    before: NDArray[np.int32]
    num_packs: int

    def totals(self, weight: NDArray[np.int64]) -> NDArray[np.int64]:
        """[P] sum over each pack's runs of ``weight`` [K]."""
        from packing import _kernels

        totals = np.zeros(self.num_packs, np.int64)
        _kernels.run_totals(weight, self.first, self.packs, totals)
        return totals


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DealtByRuns:
    """Items find their pack through their length: deciding cost nothing an item, dealing about 2 ns."""

    runs: Runs
    lengths: Lengths
    """[I] length of each item in the runs' unit; 0 for items in no pack."""
    capacity: int

    @property
    def num_packs(self) -> int:
        return self.runs.num_packs

    def _cursors(self) -> NDArray[np.uint64]:
        from packing import _kernels

        runs = self.runs
        cursors: NDArray[np.uint64] = _kernels.start_cursors(
            self.capacity + 1, runs.length, runs.first, runs.packs, runs.per_pack
        )
        return cursors

    def ids(self) -> PackIds:
        from packing import _kernels

        ids = empty_ids(self.lengths.size, self.num_packs)
        runs = self.runs
        _kernels.deal_ids(
            self.lengths, self._cursors(), runs.length, runs.first, runs.packs, runs.per_pack, ids
        )
        return ids

    def grouped(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        from packing import _kernels

        runs = self.runs
        offsets = np.zeros(self.num_packs + 1, np.int64)
        np.cumsum(runs.totals(runs.per_pack.astype(np.int64)), out=offsets[1:])
        order = np.empty(offsets[-1], np.int64)
        _kernels.deal_grouped(
            self.lengths,
            self._cursors(),
            runs.length,
            runs.first,
            runs.packs,
            runs.per_pack,
            runs.before,
            offsets,
            order,
        )
        return offsets, order

    def totals(self, weights: NDArray[np.int64]) -> NDArray[np.int64]:
        if weights is self.lengths:
            return self.runs.totals(self.runs.length.astype(np.int64) * self.runs.per_pack)
        return DealtByIds(pack_ids=self.ids(), num_packs=self.num_packs).totals(weights)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DealtByIds:
    """Packs listed item by item."""

    pack_ids: PackIds
    """[I] pack of each item, -1 where it is in none."""
    num_packs: int

    def ids(self) -> PackIds:
        return self.pack_ids

    def grouped(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        from packing import _kernels

        ids = self.pack_ids
        offsets = np.zeros(self.num_packs + 1, np.int64)
        np.cumsum(self.totals(np.ones(ids.size, np.int64)), out=offsets[1:])
        order = np.empty(offsets[-1], np.int64)
        _kernels.group_ids(ids, offsets, order)
        return offsets, order

    def totals(self, weights: NDArray[np.int64]) -> NDArray[np.int64]:
        from packing import _kernels

        totals = np.zeros(self.num_packs, np.int64)
        _kernels.sum_by_pack(self.pack_ids, weights, totals)
        return totals
