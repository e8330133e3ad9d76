"""How many readers there are, and which of them read which source. Pure: numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FULL = 0.7
"""Share of its time that a reader may be busy: the rest absorbs uneven steps."""

Table = tuple[tuple[int, ...], ...]
"""Numbers of the readers of each source."""


def readers_wanted(load_s: NDArray[np.float64], *, compute_s: float, most: int) -> int:
    """Readers that keep up with training.

    Args:
        load_s: [n] seconds of reading that a coming step needs, by source.
        compute_s: seconds that training takes for a step when it does not wait for data.
        most: there may be.
    """
    total = float(load_s.sum())
    if total <= 0.0:
        return 1
    if compute_s * FULL * most <= total:
        return most
    return max(1, math.ceil(total / (compute_s * FULL)))


def allot(load_s: NDArray[np.float64], readers: int) -> Table:
    """Readers of each source: a heavy source has some to itself, the light ones share the rest.

    A source is heavy when it would keep more than one of ``readers`` equal readers busy. Light sources go,
    the heaviest first, to the reader with the least load (LPT), each to one, so that its files are open once.

    Args:
        load_s: [n] seconds of reading that a coming step needs, by source.
        readers: at least 1.
    """
    n = load_s.size
    if readers == 1 or n == 0:
        return ((0,),) * n
    load = np.maximum(load_s, 0.0)
    part = load.sum() / readers
    heavy = np.flatnonzero(load > part) if part > 0 else np.zeros(0, np.int64)
    light = np.setdiff1d(np.arange(n), heavy)
    free = readers - (1 if light.size else 0)  # the light ones keep at least one
    heavy = heavy[np.argsort(-load[heavy], kind="stable")][:free]
    light = np.setdiff1d(np.arange(n), heavy)
    counts = _shares(load, heavy, float(load[light].sum()), readers, bool(light.size))
    table: list[tuple[int, ...]] = [()] * n
    first = 0
    for source, count in zip(heavy.tolist(), counts, strict=True):
        table[source] = tuple(range(first, first + count))
        first += count
    bins = np.zeros(readers - first)
    held = np.zeros(readers - first, np.int64)
    for source in light[np.argsort(-load[light], kind="stable")].tolist():
        lightest = int(np.lexsort((held, bins))[0])  # of equally loaded ones, that with the fewest sources
        bins[lightest] += load[source]
        held[lightest] += 1
        table[source] = (first + lightest,)
    return tuple(table)


def relieved(before: Table, after: Table) -> frozenset[int]:
    """Readers that read some source no longer: what they hold of it is in the way, if they go on.

    The others keep what they have decoded: when one of two readers is ended, the other loses nothing.
    """
    return frozenset(
        reader for old, new in zip(before, after, strict=False) for reader in set(old) - set(new)
    )


def _shares(
    load: NDArray[np.float64], heavy: NDArray[np.int64], rest: float, readers: int, has_light: bool
) -> Sequence[int]:
    """Readers of each heavy source, at least one: one after another to where each has most to do."""
    counts = np.ones(heavy.size + has_light, np.int64)
    loads = np.append(load[heavy], [rest] if has_light else [])
    for _ in range(readers - int(counts.sum())):
        counts[int(np.argmax(loads / counts))] += 1
    found: list[int] = counts[: heavy.size].tolist()
    return found
