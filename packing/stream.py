"""Packs out of an endless stream of lengths, with bounded memory and exact resume."""

from __future__ import annotations

import itertools
import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packing.checks import whole
from packing.items import Lengths, as_lengths
from packing.job import NO_LIMIT
from packing.packer import pack

ORDERS = ("free", "window", "strict")
OVERSIZE = ("error", "drop", "truncate")

_CLOSED, _OLDEST, _NEWEST, _FREE_SLOT, _FREE_NODE, _NEXT_SAMPLE = range(1, 7)
_RESIDUAL, _SAMPLES, _OPENED_AT, _ABOVE, _BELOW, _OLDER, _NEWER, _FIRST, _LAST = range(9)


class ClosedPacks(Sequence[list[int]]):
    """Packs as lists of sample numbers, made when asked for: a list costs more than packing it."""

    def __init__(self, offsets: NDArray[np.int64], order: NDArray[np.int64]) -> None:
        self.offsets = offsets
        """[P + 1] pack p is ``order[offsets[p]:offsets[p + 1]]``."""
        self.order = order
        """[N] numbers of samples in the stream, counted from 0, pack after pack."""

    def __len__(self) -> int:
        return int(self.offsets.size - 1)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        if isinstance(index, slice):
            return list(self)[index]
        if not -len(self) <= index < len(self):
            raise IndexError(f"pack {index} of {len(self)}")
        index %= len(self)
        packed: list[int] = self.order[self.offsets[index] : self.offsets[index + 1]].tolist()
        return packed

    def __iter__(self) -> Iterator[list[int]]:
        order, edges = self.order.tolist(), self.offsets.tolist()
        return (order[a:b] for a, b in itertools.pairwise(edges))

    def __add__(self, other: Sequence[list[int]]) -> list[list[int]]:
        return [*self, *other]

    def __radd__(self, other: Sequence[list[int]]) -> list[list[int]]:
        return [*other, *self]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # compares by content

    def __repr__(self) -> str:
        return f"ClosedPacks({list(self)!r})" if len(self) < 8 else f"ClosedPacks({len(self)} packs)"


class StreamPacker:
    """Pack a stream: add lengths, get the packs that closed.

    Three contracts of order, from the tightest packs to the strictest order (prices in ``docs/packing.md``):

    * ``"free"``: best fit among ``open_packs`` open packs. A sample leaves with one of the ``max_wait`` packs
      that close after it came.
    * ``"window"``: best-fit decreasing inside each run of ``window`` samples. No sample passes one of
      another window; inside a window, packs follow their first sample.
    * ``"strict"``: one open pack. Packs read one after another give the stream.

    The state is the open packs, about 2 bytes a waiting sample. Equal streams give equal packs however they
    are cut into calls of ``add``.
    """

    def __init__(
        self,
        max_tokens: int,
        open_packs: int = 256,
        *,
        order: str = "free",
        window: int = 1024,
        max_wait: int | None = None,
        max_samples: int | None = None,
        align: int = 1,
        oversize: str = "error",
    ) -> None:
        """Start with an empty stream.

        Args:
            max_tokens: tokens that a pack may hold.
            open_packs: packs that wait for more samples at the same time, under ``order="free"``.
            order: one of ``ORDERS``.
            window: samples packed together under ``order="window"``.
            max_wait: packs that may close before a sample's own does, at least ``2 * open_packs``; None for
                ``16 * open_packs``.
            max_samples: most samples of a pack; None for no limit.
            align: pad each sample to a multiple of so many tokens.
            oversize: ``"error"``, ``"drop"`` or ``"truncate"`` for samples above ``max_tokens``.
        """
        max_tokens, open_packs = whole("max_tokens", max_tokens), whole("open_packs", open_packs)
        window, align = whole("window", window), whole("align", align)
        max_samples = None if max_samples is None else whole("max_samples", max_samples)
        max_wait = 16 * open_packs if max_wait is None else whole("max_wait", max_wait)
        if order not in ORDERS or oversize not in OVERSIZE:
            raise ValueError(
                f"order must be one of {', '.join(ORDERS)} and oversize one of {', '.join(OVERSIZE)}; "
                f"got {order!r} and {oversize!r}."
            )
        smallest = {
            "open_packs": open_packs,
            "window": window,
            "align": align,
            "max_samples": 1 if max_samples is None else max_samples,
        }
        for name, number in smallest.items():
            if number < 1:
                raise ValueError(f"{name} must be at least 1; got {number}.")
        if max_wait < 2 * open_packs or not align <= max_tokens <= NO_LIMIT:
            raise ValueError(
                f"max_wait must be at least 2 * open_packs = {2 * open_packs} and max_tokens at least align "
                f"= {align}; got {max_wait} and {max_tokens}."
            )
        self.max_tokens = max_tokens
        self.open_packs = 1 if order == "strict" else open_packs
        self.order = order
        self.window = window
        self.max_wait = max_wait
        self.max_samples = NO_LIMIT if max_samples is None else min(max_samples, NO_LIMIT)
        self.align = align
        self.oversize = oversize
        self._capacity = max_tokens // align
        self._counts = {"kept": 0, "dropped": 0, "truncated": 0, "split": 0, "empty": 0}
        self._waiting = np.zeros(0, np.int64)
        self._num_waiting: int = 0
        self._clear(position=0, closed=0)

    @property
    def counts(self) -> Mapping[str, int]:
        """Samples so far by fate, as in ``Packs.counts``."""
        return dict(self._counts)

    @property
    def num_samples(self) -> int:
        """Samples added so far."""
        return int(self._now[_NEXT_SAMPLE] + self._waiting.size)

    def add(self, lengths: ArrayLike) -> ClosedPacks:
        """Add samples, [S] tokens of each; returns the packs that closed, as lists of sample numbers."""
        units = self._checked(as_lengths(lengths))
        return self._place_by_window(units) if self.order == "window" else self._place(units)

    def flush(self) -> ClosedPacks:
        """Close what is open, oldest first; the stream may go on afterwards."""
        if self.order == "window":
            rest, self._waiting = self._waiting, self._waiting[:0]
            return self._pack_window(rest)
        members = [self._members(slot) for slot in self._by_age()]
        position, closed = int(self._now[_NEXT_SAMPLE]), int(self._now[_CLOSED]) + len(members)
        self._clear(position, closed)
        return _joined(
            [(np.cumsum([0, *map(len, members)]), np.concatenate([*members, np.zeros(0, np.int64)]))]
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next packs depend on, as text and numbers."""
        slots = self._by_age()
        members = [self._members(slot) for slot in slots]
        position, closed = int(self._now[_NEXT_SAMPLE]), int(self._now[_CLOSED])
        gaps = [position - group[:1] for group in members] + [np.diff(group) for group in members]
        words = np.concatenate(
            [
                [position, closed, len(slots)],
                self._slots[_SAMPLES, slots],
                closed - self._slots[_OPENED_AT, slots],
                self._slots[_RESIDUAL, slots],
                self._heights(slots),
                *gaps,
                self._waiting,
            ]
        )
        return {
            "version": 1,
            "settings": self._settings(),
            "counts": dict(self._counts),
            "open": _as_text(words.astype(np.int64)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state_dict`` was taken; the settings must be the same."""
        if state.get("version") != 1 or state.get("settings") != self._settings():
            raise ValueError(
                f"the state belongs to another stream packer: it must have version 1 and {self._settings()}; "
                f"got version {state.get('version')} and {state.get('settings')}. Build the packer as it was."
            )
        try:
            words = _from_text(state["open"])
            counts = {name: int(state["counts"][name]) for name in self._counts}
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise ValueError(
                f"the state of a stream packer must be what state_dict gave, unchanged; reading it failed: "
                f"{error!r}. Load it from an intact checkpoint."
            ) from error
        position, closed, num_open = (int(word) for word in words[:3])
        samples, ages, residuals, heights = words[3 : 3 + 4 * num_open].reshape(4, num_open)
        firsts, rest = np.split(words[3 + 4 * num_open :], [num_open])
        gaps, self._waiting = np.split(rest, [int((samples - 1).sum())])
        self._counts = counts
        self._clear(position, closed)
        members = [
            np.cumsum(np.concatenate([[position - first], gap]))
            for first, gap in zip(firsts, np.split(gaps, np.cumsum(samples - 1)[:-1]), strict=False)
        ]
        self._reopen(members, closed - ages, residuals, heights)

    def _place(self, units: Lengths) -> ClosedPacks:
        """Best fit among the open packs; with a single one that is next-fit, which keeps the order."""
        from packing import _kernels

        most = self._num_waiting + units.size
        if most > self._nodes.shape[1]:
            self._more_nodes(2 * most)
        order = np.empty(most, np.int64)
        offsets = np.empty(units.size + self.open_packs + 2, np.int64)
        age = self.max_wait - self.open_packs if self.order == "free" else NO_LIMIT
        closed = _kernels.stream_best_fit(
            units,
            self._capacity,
            self.max_samples,
            self.open_packs,
            age,
            self._now,
            self._slots,
            self._nodes,
            self._top,
            *self._bits,
            order,
            offsets,
        )
        self._num_waiting = most - int(np.count_nonzero(units == 0)) - int(offsets[closed])
        return ClosedPacks(offsets[: closed + 1].copy(), order[: offsets[closed]])

    def _place_by_window(self, units: Lengths) -> ClosedPacks:
        self._waiting = np.concatenate([self._waiting, units])
        packed = []
        while self._waiting.size >= self.window:
            now, self._waiting = self._waiting[: self.window], self._waiting[self.window :]
            closed = self._pack_window(now)
            packed.append((closed.offsets, closed.order))
        return _joined(packed)

    def _pack_window(self, units: NDArray[Any]) -> ClosedPacks:
        """Best-fit decreasing; packs in the order of their first samples, samples in their own."""
        packs = pack(units, self._capacity, max_samples=self.max_samples)
        start = int(self._now[_NEXT_SAMPLE])
        self._now[_NEXT_SAMPLE] += units.size
        self._now[_CLOSED] += len(packs)
        ids = packs.assignment()
        kept = np.flatnonzero(ids >= 0)
        _, first = np.unique(ids[kept], return_index=True)
        rank = np.argsort(np.argsort(first))
        order = kept[np.argsort(rank[ids[kept]], kind="stable")]
        sizes = np.bincount(rank[ids[kept]], minlength=len(packs)) if kept.size else np.zeros(0, np.int64)
        return ClosedPacks(np.cumsum([0, *sizes]), start + order)

    def _checked(self, lengths: Lengths) -> Lengths:
        """Lengths in units of ``align``, over-long ones treated; an error leaves everything as it was."""
        longest = self._capacity * self.align
        long = lengths > longest
        num_long = int(np.count_nonzero(long))
        if (num_long and self.oversize == "error") or (lengths < 0).any():
            row = int(np.argmax(long | (lengths < 0)))
            raise ValueError(
                f"lengths must be 0..{longest} tokens; sample {self.num_samples + row} of the stream has "
                f"{lengths[row]}. Raise max_tokens, or choose oversize='drop' or 'truncate'."
            )
        empty = int(np.count_nonzero(lengths == 0))
        if num_long:
            self._counts["dropped" if self.oversize == "drop" else "truncated"] += num_long
            lengths = np.where(long, 0 if self.oversize == "drop" else longest, lengths)
        self._counts["empty"] += empty
        self._counts["kept"] += lengths.size - empty - (num_long if self.oversize == "drop" else 0)
        return lengths if self.align == 1 else -(-lengths // self.align)

    def _settings(self) -> dict[str, Any]:
        names = "max_tokens", "open_packs", "order", "window", "max_wait", "max_samples", "align", "oversize"
        return {name: getattr(self, name) for name in names}

    # The open packs: columns as described in _kernels/stream.py.

    def _clear(self, position: int, closed: int) -> None:
        """No open packs."""
        capacity = self._capacity
        words = [(capacity >> 6) + 1]
        words += [(words[0] >> 6) + 1]
        words += [(words[1] >> 6) + 1]
        self._bits = [np.zeros(size, np.uint64) for size in words]
        self._top = np.full(capacity + 1, -1, np.int32)
        self._slots = np.zeros((9, self.open_packs), np.int64)
        self._slots[_NEWER] = np.append(np.arange(1, self.open_packs), -1)  # free slots are chained by it
        self._nodes = np.full((2, 1), -1, np.int64)
        self._now = np.array([0, closed, -1, -1, 0, -1, position], np.int64)
        self._num_waiting = 0
        self._more_nodes(1024)

    def _more_nodes(self, size: int) -> None:
        nodes = np.full((2, size), -1, np.int64)
        used = self._nodes.shape[1]
        nodes[:, :used] = self._nodes
        nodes[1, used:] = np.append(np.arange(used + 1, size), self._now[_FREE_NODE])
        self._now[_FREE_NODE] = used
        self._nodes = nodes

    def _by_age(self) -> NDArray[np.int64]:
        """Slots of the open packs, oldest first."""
        slots = []
        slot = int(self._now[_OLDEST])
        while slot >= 0:
            slots.append(slot)
            slot = int(self._slots[_NEWER, slot])
        return np.array(slots, np.int64)

    def _members(self, slot: int) -> NDArray[np.int64]:
        """Numbers of the samples in an open pack, in order of arrival."""
        numbers = []
        node = int(self._slots[_FIRST, slot])
        while node >= 0:
            numbers.append(int(self._nodes[0, node]))
            node = int(self._nodes[1, node])
        return np.array(numbers, np.int64)

    def _heights(self, slots: NDArray[np.int64]) -> list[int]:
        """How many packs of the same room stand below each: the last to come is the first to be filled."""
        heights = []
        for slot in slots.tolist():
            height, below = 0, int(self._slots[_BELOW, slot])
            while below >= 0:
                height, below = height + 1, int(self._slots[_BELOW, below])
            heights.append(height)
        return heights

    def _reopen(
        self,
        members: list[NDArray[np.int64]],
        opened_at: NDArray[np.int64],
        residuals: NDArray[np.int64],
        heights: NDArray[np.int64],
    ) -> None:
        """Open packs anew, oldest first, in the first slots."""
        from packing import _kernels

        count = len(members)
        if count == 0:
            return
        sizes = np.array([group.size for group in members])
        total = self._num_waiting = int(sizes.sum())
        self._more_nodes(max(2 * total, 1024) + 1024)
        last = np.cumsum(sizes) - 1
        self._nodes = np.full_like(self._nodes, -1)
        self._nodes[0, :total] = np.concatenate(members)
        self._nodes[1] = np.append(np.arange(1, self._nodes.shape[1]), -1)
        self._nodes[1, last] = -1
        number = np.arange(count)
        slots = self._slots
        slots[_RESIDUAL, :count], slots[_SAMPLES, :count], slots[_OPENED_AT, :count] = (
            residuals,
            sizes,
            opened_at,
        )
        slots[_OLDER, :count], slots[_NEWER, :count] = number - 1, np.append(number[1:], -1)
        slots[_FIRST, :count], slots[_LAST, :count] = last - sizes + 1, last
        free_slot = count if count < self.open_packs else -1
        self._now[:6] = [count, self._now[_CLOSED], 0, count - 1, free_slot, total]
        for slot in np.lexsort((heights, residuals)).tolist():
            _kernels.attach(slot, slots[_RESIDUAL], slots[_ABOVE], slots[_BELOW], self._top, *self._bits)


def _joined(parts: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> ClosedPacks:
    """Packs of several (offsets, order) one after another."""
    sizes = [np.diff(offsets) for offsets, _ in parts]
    offsets = np.concatenate(
        [np.zeros(1, np.int64), np.cumsum(np.concatenate([*sizes, np.zeros(0, np.int64)]))]
    )
    return ClosedPacks(
        offsets.astype(np.int64), np.concatenate([*(order for _, order in parts), np.zeros(0, np.int64)])
    )


def _as_text(words: NDArray[np.int64]) -> str:
    """Bytes of equal weight side by side, so that the upper, mostly empty ones cost nothing."""
    planes = words.astype("<i8").view(np.uint8).reshape(-1, 8).T
    return b85encode(zlib.compress(planes.tobytes(), 9)).decode("ascii")


def _from_text(text: str) -> NDArray[np.int64]:
    planes = np.frombuffer(zlib.decompress(b85decode(text)), np.uint8).reshape(8, -1)
    return np.ascontiguousarray(planes.T).view("<i8").reshape(-1).astype(np.int64)
