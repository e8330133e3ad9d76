"""Which tokens attend to which, as blocks of neighbouring rows. Pure numpy; the same on every rank.

A task is a row ``(q_start, q_count, k_start, k_count, delta)``: queries ``q_start ..`` attend to keys
``k_start ..`` of the same sample, and the first query's place in the sample is ``delta`` behind the
first key's. Query i sees key j if ``j <= i + delta`` (causal) and ``i + delta - j < window``. Padding
stands in no task, so it neither attends nor is attended to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.sharding import aligned_lengths, shard

Tasks = NDArray[np.int64]
"""[n, 5] See the module's docstring."""


@dataclass(frozen=True)
class Pattern:
    """Which keys of its own sample a query sees."""

    causal: bool = True
    window: int | None = None
    """Keys nearest to the query, itself included: ``distance < window``. None: all of them."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1 (the token itself) or None, got {self.window}.")


class Block(NamedTuple):
    """A part of a task with one simple mask; every query in it sees at least one key."""

    q_start: int
    q_count: int
    k_start: int
    k_count: int
    mask: str
    """"whole", "diagonal" (causal from the upper left corner) or "pattern" (the pattern at ``delta``)."""
    delta: int


class Lengths(NamedTuple):
    """Samples of a micro-batch as a key: equal ones share their tables."""

    data: bytes
    degree: int

    @classmethod
    def of(cls, seq_lengths: NDArray[np.integer], degree: int) -> Lengths:
        """seq_lengths: [n] true tokens of each sample of the whole micro-batch."""
        return cls(np.ascontiguousarray(seq_lengths, dtype=np.int64).tobytes(), degree)

    @property
    def true(self) -> NDArray[np.int64]:
        """[n] True tokens."""
        return np.frombuffer(self.data, dtype=np.int64)

    @property
    def local(self) -> int:
        """Tokens of one rank, alignment padding included."""
        return int(aligned_lengths(self.true, self.degree).sum()) // self.degree


@lru_cache(maxsize=256)
def local_tasks(lengths: Lengths) -> Tasks:
    """Whole samples laid end to end, each attending to itself."""
    true = lengths.true
    starts = np.cumsum(true) - true
    return _nonempty(np.stack([starts, true, starts, true, np.zeros_like(true)], axis=1))


@lru_cache(maxsize=256)
def gathered_tasks(lengths: Lengths, rank: int, pattern: Pattern) -> Tasks:
    """Queries of ``rank``'s shard; keys of all samples, unpadded, in their own order.

    The last key is the last query's own or the end of the sample, so under a causal pattern
    ``delta == k_count - q_count`` and a kernel that aligns at the lower right needs no more.
    """
    true = lengths.true
    starts = np.cumsum(true) - true
    tasks = []
    for local, position, count in _pieces(lengths, rank):
        reach = pattern.window if pattern.window is not None else int(true.max(initial=0)) + 1
        low = np.maximum(position - reach + 1, 0)
        high = position + count if pattern.causal else np.minimum(true, position + count - 1 + reach)
        tasks.append(np.stack([local, count, starts + low, high - low, position - low], axis=1))
    # [pieces, n, 5] -> sample after sample, so that queries come in the order of their rows
    return _nonempty(np.stack(tasks, axis=1).reshape(-1, 5))


@lru_cache(maxsize=1024)
def ring_tasks(lengths: Lengths, rank: int, source: int, pattern: Pattern) -> Tasks:
    """Queries of ``rank``'s shard; keys of ``source``'s shard, in its layout."""
    mine, theirs = _pieces(lengths, rank), _pieces(lengths, source)
    if pattern.window is not None:
        pairs = [
            np.stack([q_local, q_count, k_local, k_count, q_position - k_position], axis=1)
            for q_local, q_position, q_count in mine
            for k_local, k_position, k_count in theirs
        ]
        return _visible(_nonempty(np.stack(pairs, axis=1).reshape(-1, 5)), pattern)
    (q_early, q_late), (k_early, k_late) = mine, theirs
    q_all, k_all = q_early[2] + q_late[2], k_early[2] + k_late[2]
    zero = np.zeros_like(q_all)
    if not pattern.causal or rank == source:
        # both chunks in one: within a shard, order of rows is order of places, and that is all causality asks
        columns = [q_early[0], q_all, k_early[0], k_all, zero]
    elif source < rank:  # their early chunk lies before both of ours, their late one behind both
        columns = [q_early[0], q_all, k_early[0], k_early[2], k_early[2]]
    else:  # both of theirs lie between our two
        columns = [q_late[0], q_late[2], k_early[0], k_all, k_all]
    return _nonempty(np.stack(columns, axis=1))


@lru_cache(maxsize=256)
def natural_order(lengths: Lengths, rows: int) -> NDArray[np.int64]:
    """[N] Where each true token lies once all ranks' shards of ``rows`` tokens stand in a row."""
    place = np.empty(int(lengths.true.sum()), dtype=np.int64)
    for rank in range(lengths.degree):
        index = shard(lengths.true, lengths.degree, rank).index
        held = np.flatnonzero(index >= 0)
        place[index[held]] = rank * rows + held
    return place


def blocks(task: NDArray[np.int64], pattern: Pattern) -> Iterator[Block]:
    """Cut a task into parts whose masks a plain attention kernel knows; few, and large where possible."""
    q_start, q_count, k_start, k_count, delta = (int(value) for value in task)
    window = pattern.window
    nearest_fits = not pattern.causal or k_count - 1 <= delta
    farthest_fits = window is None or (
        delta + q_count - 1 < window and (pattern.causal or k_count - 1 - delta < window)
    )
    if nearest_fits and farthest_fits:
        yield Block(q_start, q_count, k_start, k_count, "whole", delta)
    elif farthest_fits and delta >= 0:
        if delta:
            yield Block(q_start, q_count, k_start, delta, "whole", delta)
        yield Block(q_start, q_count, k_start + delta, min(k_count - delta, q_count), "diagonal", 0)
    else:
        yield from _banded(q_start, q_count, k_start, k_count, delta, pattern)


def _banded(
    q_start: int, q_count: int, k_start: int, k_count: int, delta: int, pattern: Pattern
) -> Iterator[Block]:
    """Strips of queries with just the keys they can see; half a window of rows wastes a third of the work."""
    window = pattern.window if pattern.window is not None else k_count + q_count + abs(delta)
    strip = min(max(window // 2, 128), 1024)
    for first in range(0, q_count, strip):
        rows = min(strip, q_count - first)
        low = max(0, delta + first - window + 1)
        reach = 0 if pattern.causal else window - 1
        high = min(k_count, delta + first + rows + reach)
        yield Block(q_start + first, rows, k_start + low, high - low, "pattern", delta + first - low)


def _pieces(lengths: Lengths, rank: int) -> list[tuple[NDArray[np.int64], ...]]:
    """Local start, place in the sample and true tokens of the early and the late chunk; [n] each."""
    true, degree = lengths.true, lengths.degree
    held = aligned_lengths(true, degree) // degree
    starts = np.cumsum(held) - held
    if degree == 1:
        return [(starts, np.zeros_like(true), true)]
    chunk = held // 2
    early, late = rank * chunk, (2 * degree - 1 - rank) * chunk
    return [
        (starts, early, np.clip(true - early, 0, chunk)),
        (starts + chunk, late, np.clip(true - late, 0, chunk)),
    ]


def _nonempty(tasks: Tasks) -> Tasks:
    return tasks[(tasks[:, 1] > 0) & (tasks[:, 3] > 0)]


def _visible(tasks: Tasks, pattern: Pattern) -> Tasks:
    """Without the queries that see no key of the task and the keys that no query sees."""
    q_start, q_count, k_start, k_count, delta = tasks.T
    window = pattern.window if pattern.window is not None else np.iinfo(np.int32).max
    ahead = 0 if pattern.causal else window - 1
    # query i sees keys i + delta - window + 1 .. i + delta + ahead; both ends grow with i
    first = np.clip(-delta - ahead, 0, q_count)
    last = np.clip(k_count - delta + window - 1, first, q_count)
    low = np.clip(first + delta - window + 1, 0, k_count)
    high = np.clip(last - 1 + delta + ahead + 1, low, k_count)
    columns = [q_start + first, last - first, k_start + low, high - low, delta + first - low]
    return _nonempty(np.stack(columns, axis=1))
