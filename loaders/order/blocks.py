"""Shuffling where a row is not cheap by itself: blocks first, then rows within bundles of a few blocks.

A row of a parquet file costs its row group, and behind a URL a download. An order over all rows would
need every block again and again. So a keyed permutation puts the *blocks* of a source in an order; a bundle
is a few of them that follow one another there; and a keyed permutation of its own shuffles the rows of a
bundle. It is still a function of the position: once an epoch the order of the blocks is laid out (16 bytes a
block), and then a position costs a binary search and a permutation. Every row comes once, and blocks are
needed one bundle at a time, each in one stretch of the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loaders.catalog import Catalog
from loaders.order.permutation import derive, permute
from loaders.sources.base import Blocks
from loaders.sources.chunked import DECODED

FETCHED_BLOCKS = 16
"""Most blocks of a bundle behind URLs: a first batch needs as many downloads."""
LOCAL_BLOCKS = 64
"""Most blocks of a bundle of local files: a first batch decodes as many, of 10,000 rows about 10 ms each."""
KEPT_ORDERS = 4
"""Orders of blocks that are remembered: of this epoch and the next, and of those that are looked at."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BlockShuffle:
    """How one source is shuffled. Axis: B = its blocks."""

    first_place: NDArray[np.int64]
    """[B + 1] Block b holds the usable rows ``first_place[b] .. first_place[b + 1] - 1``."""
    together: int
    """Blocks of a bundle; the last one of an epoch may have fewer."""
    _orders: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)

    @property
    def radius(self) -> int:
        """Rows of a bundle of mean size: how far apart rows may lie to come close together."""
        blocks = self.first_place.size - 1
        return round(int(self.first_place[-1]) * self.together / max(blocks, 1))

    def permute(self, positions: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """Image of ``positions`` [N] under the permutation of usable rows that ``key`` names.

        Cost: O(B) the first time for a key, then O(N log B), wherever the positions lie.
        """
        order, ends = self._order(key)
        begins = ends[: -1 : self.together]  # of bundles
        bundle = np.searchsorted(begins, positions, side="right") - 1
        places = np.empty_like(positions)
        for number in np.unique(bundle).tolist():
            mine = bundle == number
            begin = int(begins[number])
            size = int(ends[min((number + 1) * self.together, ends.size - 1)]) - begin
            places[mine] = begin + permute(positions[mine] - begin, size, derive(key, "bundle", number))
        turn = np.searchsorted(ends, places, side="right") - 1  # place of the block in the epoch's order
        return np.asarray(self.first_place[order[turn]] + places - ends[turn])

    def _order(self, key: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Blocks as they come [B], and the rows before each of them and behind the last [B + 1]."""
        found = self._orders.get(key)
        if found is None:
            blocks = self.first_place.size - 1
            order = permute(np.arange(blocks), blocks, derive(key, "blocks"))
            sizes = np.diff(self.first_place)[order]
            found = order, np.concatenate(([0], np.cumsum(sizes)))
            if len(self._orders) >= KEPT_ORDERS:
                self._orders.clear()  # two threads at once at worst lay one out twice
            self._orders[key] = found
        return found


def block_shuffles(catalogs: Sequence[Catalog]) -> list[BlockShuffle | None]:
    """How each source is shuffled; ``None``: over all its rows, which is where any of them costs alike.

    Sources whose blocks must be held share a quarter of the process's budget for decoded blocks: two bundles
    are open where one passes into the next, and decoded tokens may take twice what they take in the file. A
    source that fits into its share as a whole is shuffled as a whole.
    """
    blocks = [catalog.source.blocks() if len(catalog) else None for catalog in catalogs]
    shared = sum(one is not None for one in blocks)
    return [
        None if one is None else _block_shuffle(one, catalog, DECODED.budget // 4 // shared)
        for one, catalog in zip(blocks, catalogs, strict=True)
    ]


def _block_shuffle(blocks: Blocks, catalog: Catalog, budget: int) -> BlockShuffle | None:
    count = blocks.size_bytes.size
    together = blocks.together
    if together is None:
        largest = max(int(blocks.size_bytes.max(initial=1)), 1)
        most = FETCHED_BLOCKS if blocks.fetched else LOCAL_BLOCKS
        fits = int(blocks.size_bytes.sum()) <= budget and not blocks.fetched
        together = 0 if fits else max(min(budget // largest, most), 1)
    if together == 0 or together >= count:
        return None
    first = blocks.first_row
    usable = catalog.usable
    return BlockShuffle(
        first_place=first if usable is None else np.searchsorted(usable, first).astype(np.int64),
        together=together,
    )
