"""The result of packing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from packing.dealt import Dealt, PackIds
from packing.items import Items


class Packs:
    """Which samples share a pack. Axes: S = samples given, P = packs, N = items in packs.

    An item is a sample, or a piece of one under ``oversize="split"``. Columns are worked out when they
    are first asked for, from the lengths that were given: do not change those in between.
    """

    def __init__(
        self, items: Items, dealt: Dealt, *, max_tokens: int, align: int, bound: Callable[[], int]
    ) -> None:
        self._items = items
        self._dealt = dealt
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

    @property
    def counts(self) -> Mapping[str, int]:
        """Samples ``kept``, ``dropped``, ``truncated``, ``split``, ``empty``.

        ``kept + dropped + empty`` is the number of samples given; ``truncated`` and ``split`` say how
        many of the kept ones were cut.
        """
        return self._items.counts

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
        return self._dealt.totals(self._items.lengths)

    @cached_property
    def padded_tokens(self) -> NDArray[np.int64]:
        """[P] tokens in each pack, every sample padded to a multiple of ``align``; the cap applies to these."""
        if self.align == 1:
            return self.num_tokens
        return self._dealt.totals(_padded(self._items.lengths, self.align))

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
        return self._bound()

    def assignment(self) -> PackIds:
        """[S] pack of each sample, -1 where it was dropped or empty; the first piece's pack if it was split.

        int32 while ids fit. Worked out anew at each call, in one pass over the lengths.
        """
        ids = self._dealt.ids()
        if self._items.sample is None:
            return ids
        first_piece = np.searchsorted(self._items.sample, np.arange(self._items.num_samples))
        return ids[first_piece]


def _padded(lengths: NDArray[np.signedinteger], align: int) -> NDArray[np.int64]:  # type: ignore[type-arg]
    return -(-lengths.astype(np.int64) // align) * align
