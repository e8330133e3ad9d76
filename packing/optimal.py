"""Close the gap that best-fit decreasing leaves, by patterns of lengths instead of single samples.

A linear program over all patterns tells how often each should be used, in fractions, and how few packs there
can be. Diving makes it whole: use every pattern as often as its whole part says, else the most wanted one
once, and solve again for what is left. A dive that cannot end below the best packing known is given up, and
the next one chooses a little differently. Everything is counted in steps, so equal inputs give equal packs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packing.bounds import fewest_packs
from packing.dealt import Runs
from packing.shuffling import mixed

WORK = 3_000_000_000
"""Innermost loop turns of one call, some seconds at most; most instances end after a thousandth of it."""
MOST_LENGTHS = 400
"""Distinct lengths that one linear program takes; its tables and steps grow with the square."""
MOST_CELLS = 60_000_000
"""Distinct lengths times capacity, the cells of the table that prices patterns."""
MOST_DIVES = 60


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Patterns:
    """Packs by what they hold. Axes: T = patterns, V = distinct lengths."""

    contents: NDArray[np.int64]
    """[T, V] samples of each length in one pack."""
    times: NDArray[np.int64]
    """[T] packs of each pattern."""

    def __len__(self) -> int:
        return int(self.times.sum())


class _Search:
    """One instance: the patterns met so far and the work that is left."""

    def __init__(
        self, values: NDArray[np.int64], counts: NDArray[np.int64], capacity: int, work: int
    ) -> None:
        self.values = values
        self.counts = counts
        self.capacity = capacity
        self.work = work
        self.pool = np.zeros((0, values.size), np.int64)

    def relax(self, left: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
        """Patterns [., V], how often to use each in fractions, a proven bound, for samples ``left`` [V]."""
        from packing import _kernels

        active = np.flatnonzero(left)
        pool = np.minimum(self.pool[:, active], left[active])
        pool = pool[pool.any(axis=1)]
        known = pool.shape[0]
        room = np.zeros((max(known + 64, 64), active.size), np.int64)
        room[:known] = pool
        basis, x, prices, worth, pool, size, self.work = _kernels.fractional_packs(
            self.values[active], left[active], self.capacity, room, known, self.work
        )
        fresh = np.zeros((size - known, self.values.size), np.int64)
        fresh[:, active] = pool[known:size]
        self.pool = np.concatenate([self.pool, fresh])[-4 * self.values.size :]
        used = basis >= 0
        patterns = np.zeros((int(used.sum()), self.values.size), np.int64)
        patterns[:, active] = pool[basis[used]]
        value = sum(p * n for p, n in zip(prices.tolist(), left[active].tolist(), strict=True))
        bound = -(-value // int(worth)) if worth > 0 else 0
        return patterns, x[used], bound

    def dive(self, target: int, key: int) -> Patterns | None:
        """A packing of at most ``target`` packs, or None where this dive finds none; key 0: no detours."""
        left = self.counts.copy()
        contents: list[NDArray[np.int64]] = []
        times: list[int] = []
        while self.work > 0:
            spent = sum(times)
            rest = self._rest(left)
            if spent + len(rest) <= target:
                return Patterns(
                    contents=np.concatenate(
                        [np.array(contents, np.int64).reshape(-1, left.size), rest.contents]
                    ),
                    times=np.concatenate([np.array(times, np.int64), rest.times]),
                )
            patterns, x, bound = self.relax(left)
            if spent + bound > target or x.size == 0:
                return None
            for pattern, often in _whole_part(patterns, x, mixed(key, spent) if key else 0):
                pattern = np.minimum(pattern, left)
                if pattern.any():
                    held = pattern > 0
                    often = min(often, int((left[held] // pattern[held]).min()))
                    left -= often * pattern
                    contents.append(pattern)
                    times.append(often)
        return None

    def _rest(self, left: NDArray[np.int64]) -> Patterns:
        """What best-fit makes of the samples that are left."""
        return best_fit_patterns(self.values, left, self.capacity)


def _whole_part(
    patterns: NDArray[np.int64], x: NDArray[np.float64], key: int
) -> list[tuple[NDArray[np.int64], int]]:
    """Patterns to use now, and how often: whole parts, else what is nearly whole, else the largest part."""
    whole = np.floor(x + 1e-6).astype(np.int64)
    if whole.any():
        return [(patterns[t], int(whole[t])) for t in np.flatnonzero(whole)]
    wish = x.copy()
    if key:
        # Up to a quarter of a pack of noise, so that another dive turns off at another place.
        wish += [mixed(key, t) / 2**66 for t in range(x.size)]
    best = int(np.argmax(wish))
    sure = [t for t in np.flatnonzero(x > 0.95).tolist() if t != best]
    return [(patterns[t], 1) for t in [best, *sure]]


def best_fit_patterns(values: NDArray[np.int64], counts: NDArray[np.int64], capacity: int) -> Patterns:
    """Best-fit decreasing as patterns. O(runs x V) memory: for small instances."""
    from packing import _kernels

    active = np.flatnonzero(counts)
    value, first, packs, per_pack, _, num_packs = _kernels.best_fit(
        values[active], counts[active], capacity, 2**31 - 1
    )
    edges = np.unique(np.concatenate([first, first + packs, [0, num_packs]]))
    contents = np.zeros((edges.size - 1, values.size), np.int64)
    begin, end = np.searchsorted(edges, first), np.searchsorted(edges, first + packs)
    for k in range(value.size):
        contents[begin[k] : end[k], active[value[k]]] += per_pack[k]
    return Patterns(contents=contents, times=np.diff(edges))


def fewer_packs(
    values: NDArray[np.int64], counts: NDArray[np.int64], capacity: int, *, work: int = WORK
) -> tuple[Patterns, int]:
    """The fewest packs found for a histogram, and a proven bound.

    Args:
        values: [V] descending lengths in ``1..capacity``; at most ``MOST_LENGTHS`` of them.
        counts: [V] samples of each.
        capacity: tokens of a pack.
        work: innermost loop turns to spend.
    """
    best = best_fit_patterns(values, counts, capacity)
    bound = fewest_packs(values, counts, capacity, 2**31 - 1)
    search = _Search(values, counts, capacity, work)
    if len(best) > bound:
        bound = max(bound, search.relax(counts)[2])
    for attempt in range(MOST_DIVES):
        if len(best) <= bound or search.work <= 0:
            break
        found = search.dive(len(best) - 1, attempt)
        if found is not None:
            best = found
    return best, bound


def solvable(values: NDArray[np.int64], capacity: int) -> bool:
    """Whether a linear program over these lengths fits into the limits."""
    return values.size <= MOST_LENGTHS and values.size * capacity <= MOST_CELLS


def runs_of(patterns: Patterns) -> Runs:
    """Runs that deal the patterns, pack after pack, each from its longest length to its shortest."""
    rows: list[tuple[int, int, int, int, int]] = []
    start = 0
    for pattern, times in zip(patterns.contents, patterns.times.tolist(), strict=True):
        inside = 0
        for v in np.flatnonzero(pattern).tolist():
            left = int(pattern[v])
            while left:
                m = min(left, 65535)
                most = max(1, (2**32 - 1) // (m * m))
                rows += [(v, start + q, min(most, times - q), m, inside) for q in range(0, times, most)]
                inside += m
                left -= m
        start += times
    columns = np.array(sorted(rows, key=lambda row: row[0]), np.int64).reshape(-1, 5)
    return Runs(
        value=columns[:, 0].astype(np.int32),
        first=columns[:, 1].copy(),
        packs=columns[:, 2].copy(),
        per_pack=columns[:, 3].astype(np.int32),
        before=columns[:, 4].astype(np.int32),
        num_packs=start,
    )
