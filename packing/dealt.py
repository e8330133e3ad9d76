"""Who sits in which pack: two ways to say it, by runs of equal packs or by a pack id for each item."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packing.histogram import Histogram
from packing.shuffling import mixed, renumbering, turns

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

    @property
    def proven(self) -> int:
        """Packs that the strategy proved to be needed; 0 where it proved nothing."""

    def ids(self, start: int, stop: int, threads: int) -> PackIds:
        """Packs of the items ``start .. stop - 1``, -1 where an item is in none."""

    def grouped(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Offsets [P + 1], and items pack after pack."""

    def tokens(self) -> NDArray[np.int64]:
        """[P] sum of the items' lengths in each pack, in the strategy's unit."""

    def reshuffled(self, key: int) -> Dealt:
        """Packs of the same lengths with other partners and in another order."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Runs:
    """Packs described by length, not by item. Axis: K = runs.

    Run k says: packs ``first .. first + packs - 1`` each hold ``per_pack`` items of one length behind
    ``before`` others. Runs of one length are neighbours; equal items are dealt to them in item order.
    ``packs * per_pack**2 < 2**32`` (or ``packs == 1``) and ``per_pack < 2**16``, so that dealing is exact.
    """

    value: NDArray[np.int32]
    """[K] index of the length among the histogram's values."""
    first: NDArray[np.int64]
    packs: NDArray[np.int64]
    per_pack: NDArray[np.int32]
    before: NDArray[np.int32]
    num_packs: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DealtByRuns:
    """Items find their pack through their length: deciding costs nothing an item, dealing about 2 ns."""

    runs: Runs
    histogram: Histogram
    turn: NDArray[np.int64] | None = None
    """[V] place from which items of each length are dealt; None for the first."""
    renumber: NDArray[np.uint64] | None = None
    """Words of the bijection that pack ids go through; None for none."""
    proven: int = 0

    @property
    def num_packs(self) -> int:
        return self.runs.num_packs

    def ids(self, start: int, stop: int, threads: int) -> PackIds:
        ids = np.empty(stop - start, np.int32)
        if threads == 1:
            self._deal(start, stop, self._count(0, start) if start else None, ids)
        else:
            edges = [start + (stop - start) * t // threads for t in range(threads + 1)]
            with ThreadPoolExecutor(threads) as pool:
                counted = list(pool.map(self._count, [0, *edges[:-2]], edges[:-1]))
                before = itertools.accumulate(counted)
                outs = [ids[a - start : b - start] for a, b in itertools.pairwise(edges)]
                list(pool.map(self._deal, edges[:-1], edges[1:], before, outs))
        if self.num_packs < 2**31:
            return ids
        wide = ids.view(np.uint32).astype(np.int64)
        wide[ids == -1] = -1
        return wide

    def grouped(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        from packing import _kernels

        runs = self.runs
        offsets = np.zeros(self.num_packs + 1, np.int64)
        np.cumsum(self._totals(runs.per_pack.astype(np.int64)), out=offsets[1:])
        order = np.empty(offsets[-1], np.int64)
        _kernels.deal_grouped(
            self.histogram.rows,
            self.histogram.row_map,
            self._cursors(None),
            self._run_rows(),
            runs.first,
            runs.packs,
            runs.per_pack,
            runs.before,
            self.renumber,
            offsets,
            order,
        )
        return offsets, order

    def tokens(self) -> NDArray[np.int64]:
        return self._totals(self.histogram.values[self.runs.value] * self.runs.per_pack)

    def reshuffled(self, key: int) -> DealtByRuns:
        values, counts = self.histogram.values, self.histogram.counts
        return replace(
            self,
            turn=turns(values, counts, mixed(key, 0)),
            renumber=renumbering(self.num_packs, mixed(key, 1)),
        )

    def _totals(self, weight: NDArray[np.int64]) -> NDArray[np.int64]:
        """[P] sum of ``weight`` [K] over each pack's runs."""
        from packing import _kernels

        totals = np.zeros(self.num_packs, np.int64)
        _kernels.run_totals(weight, self.runs.first, self.runs.packs, self.renumber, totals)
        return totals

    def _run_rows(self) -> NDArray[np.int32]:
        return self.histogram.row_of_value[self.runs.value]

    def _count(self, start: int, stop: int) -> NDArray[np.int64]:
        """[rows] items of each row among the items ``start .. stop - 1``."""
        from packing import _kernels

        counted: NDArray[np.int64] = _kernels.count_rows(
            self.histogram.rows[start:stop], self.histogram.row_map, self.histogram.num_rows
        )
        return counted

    def _cursors(self, rows_before: NDArray[np.int64] | None) -> NDArray[np.uint64]:
        """Cursors behind the items of earlier chunks and the length's turn."""
        from packing import _kernels

        skip = rows_before
        if skip is not None or self.turn is not None:
            row_of, counts = self.histogram.row_of_value, self.histogram.counts
            skip = np.zeros(self.histogram.num_rows, np.int64) if skip is None else skip.copy()
            skip[row_of] = (skip[row_of] + (0 if self.turn is None else self.turn)) % counts
        cursors: NDArray[np.uint64] = _kernels.start_cursors(
            self.histogram.num_rows,
            skip,
            self._run_rows(),
            self.runs.first,
            self.runs.packs,
            self.runs.per_pack,
        )
        return cursors

    def _deal(
        self, start: int, stop: int, rows_before: NDArray[np.int64] | None, ids: NDArray[np.int32]
    ) -> None:
        """Write the ids of the items ``start .. stop - 1``; rows_before: [rows] items before them."""
        from packing import _kernels

        _kernels.deal_ids(
            self.histogram.rows[start:stop],
            self.histogram.row_map,
            self._cursors(rows_before),
            self._run_rows(),
            self.runs.first,
            self.runs.packs,
            self.runs.per_pack,
            self.renumber,
            ids,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DealtTogether:
    """Groups of items that sit in one pack; the strategy packed the groups."""

    groups: Dealt
    group: NDArray[np.int64]
    """[I] group of each item, -1 for items in no pack."""
    proven: int = 0

    @property
    def num_packs(self) -> int:
        return self.groups.num_packs

    def ids(self, start: int, stop: int, threads: int) -> PackIds:
        of_group = self.groups.ids(0, int(self.group.max(initial=-1)) + 1, threads)
        group = self.group[start:stop]
        ids = empty_ids(stop - start, self.num_packs)
        ids[:] = np.where(group < 0, -1, of_group[group]) if of_group.size else -1
        return ids

    def grouped(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return group_by_ids(self.ids(0, self.group.size, 1), self.num_packs)

    def tokens(self) -> NDArray[np.int64]:
        return self.groups.tokens()

    def reshuffled(self, key: int) -> DealtTogether:
        return replace(self, groups=self.groups.reshuffled(key))


def group_by_ids(ids: PackIds, num_packs: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offsets [P + 1], and items pack after pack, from the pack of each item."""
    from packing import _kernels

    offsets = np.zeros(num_packs + 1, np.int64)
    np.cumsum(np.bincount(ids[ids >= 0], minlength=num_packs), out=offsets[1:])
    order = np.empty(offsets[-1], np.int64)
    _kernels.group_ids(ids, offsets, order)
    return offsets, order


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DealtByIds:
    """Packs listed item by item."""

    pack_ids: PackIds
    """[I] pack of each item, -1 where it is in none."""
    num_packs: int
    lengths: NDArray[np.int64] | NDArray[np.int32]
    """[I] lengths in the strategy's unit."""
    alike: tuple[NDArray[Any], ...] | None
    """Columns [I]: items equal in all of them may change places; None where the order must be kept."""
    proven: int = 0

    def ids(self, start: int, stop: int, threads: int) -> PackIds:
        return self.pack_ids[start:stop]

    def grouped(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return group_by_ids(self.pack_ids, self.num_packs)

    def tokens(self) -> NDArray[np.int64]:
        from packing import _kernels

        totals = np.zeros(self.num_packs, np.int64)
        _kernels.sum_by_pack(self.pack_ids, self.lengths, totals)
        return totals

    def reshuffled(self, key: int) -> DealtByIds:
        if self.alike is None or self.pack_ids.size == 0:
            return self
        by_kind = np.lexsort(self.alike)
        differs = np.zeros(by_kind.size, bool)
        for column in self.alike:
            differs[1:] |= np.diff(column[by_kind]) != 0
        kind = np.cumsum(differs)
        counts = np.bincount(kind)
        first = np.cumsum(counts) - counts
        turn = turns(np.arange(first.size), counts, mixed(key, 0))
        place = (np.arange(kind.size) - first[kind] + turn[kind]) % counts[kind] + first[kind]
        ids = self.pack_ids[by_kind][place]
        renumber = renumbering(self.num_packs, mixed(key, 1))
        if renumber is not None:
            factor, shift = int(renumber[0]), int(renumber[2])
            new_id = (np.arange(self.num_packs, dtype=np.uint64) * np.uint64(factor)) % np.uint64(
                self.num_packs
            )
            new_id = ((new_id + np.uint64(shift)) % np.uint64(self.num_packs)).astype(ids.dtype)
            ids = np.where(ids < 0, ids, new_id[ids])
        pack_ids = np.empty_like(self.pack_ids)
        pack_ids[by_kind] = ids
        return replace(self, pack_ids=pack_ids)
