"""The result of packing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packing.dealt import Dealt, PackIds
from packing.items import Items
from packing.shuffling import mixed


class Packs:
    """Which samples share a pack. Axes: S = samples given, P = packs, N = items in packs.

    An item is a sample, or a piece of one under ``oversize="split"``. Columns are worked out when they
    are first asked for, from the lengths that were given: do not change those in between.
    """

    def __init__(
        self,
        items: Items,
        dealt: Dealt,
        *,
        max_tokens: int,
        align: int,
        bound: Callable[[], int],
        original: Dealt | None = None,
    ) -> None:
        self._items = items
        self._dealt = dealt
        self._original = dealt if original is None else original
        self._bound = bound
        self.max_tokens = max_tokens
        """Tokens that a pack may hold, padding of samples to a multiple of ``align`` included."""
        self.align = align
        """Each sample takes room for a multiple of so many tokens."""

    def __len__(self) -> int:
        return self._dealt.num_packs

    def __getitem__(self, pack: int) -> NDArray[np.int64]:
        """Sample indices of one pack; negative numbers count from the end."""
        if not -len(self) <= pack < len(self):
            raise IndexError(f"pack {pack} of {len(self)}")
        pack %= len(self)
        return self.order[self.offsets[pack] : self.offsets[pack + 1]]

    def __repr__(self) -> str:
        return (
            f"Packs({len(self)} packs of {self.max_tokens} tokens, fill {self.fill:.4f}, {dict(self.counts)})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """For pickling and deep copies: with the bound's number, since its function cannot travel."""
        return self.__dict__ | {"_bound": partial(int, self._bound())}

    @property
    def counts(self) -> Mapping[str, int]:
        """Samples ``kept``, ``dropped``, ``truncated``, ``split``, ``empty``.

        ``kept + dropped + empty`` is the number of samples given; ``truncated`` and ``split`` say how
        many of the kept ones were cut.
        """
        return MappingProxyType(self._items.counts)

    @property
    def lost_tokens(self) -> int:
        """Tokens dropped or cut off; with the tokens in packs they make up all tokens given."""
        return self._items.lost_tokens

    @cached_property
    def _grouped(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self._dealt.grouped()

    @property
    def offsets(self) -> NDArray[np.int64]:
        """[P + 1] pack p is ``order[offsets[p]:offsets[p + 1]]``."""
        return self._grouped[0]

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """[N] sample indices, pack after pack; a split sample occurs once for each piece."""
        sample = self._items.sample
        return self._grouped[1] if sample is None else sample[self._grouped[1]]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """[N] first token of each item of ``order`` within its sample; 0 unless it was cut."""
        if self._items.start is None:
            return np.zeros(self._grouped[1].size, np.int64)
        return self._items.start[self._grouped[1]]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[N] tokens of each item of ``order``, without alignment padding."""
        return self._items.lengths[self._grouped[1]].astype(np.int64)

    @cached_property
    def num_tokens(self) -> NDArray[np.int64]:
        """[P] tokens in each pack, without alignment padding."""
        if self.align == 1:
            return self._dealt.tokens()
        lengths, ids = self._items.lengths, self._dealt.ids(0, self._items.lengths.size, 1)
        packed = ids >= 0
        return sums(ids[packed], lengths[packed], len(self))

    @cached_property
    def padded_tokens(self) -> NDArray[np.int64]:
        """[P] tokens in each pack, samples padded to a multiple of ``align``; the cap applies to these."""
        return self._dealt.tokens() * self.align

    @cached_property
    def total_tokens(self) -> int:
        """Tokens in all packs, without alignment padding."""
        return int(self._items.lengths.sum(dtype=np.int64))

    @property
    def fill(self) -> float:
        """Tokens in packs / (packs x ``max_tokens``); 1.0 when there is nothing to pack."""
        return self.total_tokens / (len(self) * self.max_tokens) if len(self) else 1.0

    @cached_property
    def lower_bound(self) -> int:
        """A number of packs that no algorithm can go below."""
        return max(self._bound(), self._dealt.proven)

    def assignment(self, start: int = 0, stop: int | None = None, *, threads: int = 1) -> PackIds:
        """[S] pack of each sample, -1 where it was dropped or empty; the first piece's pack if it was split.

        int32 while ids fit. Worked out anew at each call, in one pass over the lengths. ``start`` and
        ``stop`` give the same numbers for a part of the samples; the ones before it are only counted.
        """
        num_samples = self._items.num_samples
        stop = num_samples if stop is None else stop
        if not 0 <= start <= stop <= num_samples or threads < 1:
            raise ValueError(
                f"samples must lie within 0..{num_samples} and threads be at least 1; "
                f"got {start}..{stop} on {threads} threads."
            )
        if self._items.sample is None:
            return self._dealt.ids(start, stop, threads)
        ids = self._dealt.ids(0, self._items.sample.size, threads)
        return ids[np.searchsorted(self._items.sample, np.arange(start, stop))]

    def reshuffled(self, seed: int, epoch: int = 0) -> Packs:
        """The same packs by length, with other samples of those lengths, in another order.

        A function of (seed, epoch) and of the packing itself, not of an earlier reshuffling. Packs of a
        strategy that keeps the order (``next_fit``) stay as they are.
        """
        return Packs(
            self._items,
            self._original.reshuffled(mixed(seed, epoch)),
            max_tokens=self.max_tokens,
            align=self.align,
            bound=self._bound,
            original=self._original,
        )


def sums(ids: PackIds, weights: NDArray[np.signedinteger[Any]], num_packs: int) -> NDArray[np.int64]:
    """[P] exact sum of the weights of each pack; ids: [N] pack of each weight."""
    totals = np.zeros(num_packs, np.int64)
    np.add.at(totals, ids, weights)
    return totals
