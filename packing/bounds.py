"""How few packs there can be.

A dual feasible function f gives every length a share of a pack such that lengths that fit into one pack have
shares of at most 1 together; then the sum of all shares is a lower bound. The sum of lengths is the simplest;
Martello and Toth's L2 (Discrete Applied Mathematics 28, 1990) and the families of Fekete and Schepers
(Mathematical Programming 91, 2001) and of Carlier, Clautiaux and Moukrim (Computers & OR 34, 2007) see that
long samples leave gaps nobody can fill. Shares are whole numbers here, so no rounding can make a bound wrong.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST_FUNCTIONS = 64
"""Members tried of each family; each costs a few passes over the distinct lengths."""


def fewest_packs(
    values: NDArray[np.int64], counts: NDArray[np.int64], capacity: int, max_samples: int
) -> int:
    """A number of packs that no packing of the histogram can go below.

    Args:
        values: [V] descending lengths in ``1..capacity``.
        counts: [V] samples of each.
        capacity: tokens of a pack.
        max_samples: most samples of a pack.
    """
    if values.size == 0:
        return 0
    return max(
        -(-int(counts.sum()) // max_samples),
        martello_toth(values, counts, capacity),
        _rounded_shares(values, counts, capacity),
        _cut_shares(values, counts, capacity),
    )


def martello_toth(values: NDArray[np.int64], counts: NDArray[np.int64], capacity: int) -> int:
    """L2: for each threshold, samples above ``capacity - threshold`` stay alone, short ones are left out."""
    tokens = values * counts
    tokens_from = np.concatenate([[0], np.cumsum(tokens)])
    samples_from = np.concatenate([[0], np.cumsum(counts)])
    # values[:halves] are above half a pack: no two of them share one.
    halves = int(np.searchsorted(-values, -(capacity // 2), side="left"))
    thresholds = np.concatenate([[0], values[halves:]])
    alone = np.minimum(np.searchsorted(-values, -(capacity - thresholds), side="left"), halves)
    last = np.concatenate([[values.size], np.searchsorted(-values, -values[halves:], side="right")])
    room = (samples_from[halves] - samples_from[alone]) * capacity - (
        tokens_from[halves] - tokens_from[alone]
    )
    short = tokens_from[last] - tokens_from[halves]
    more = np.maximum(0, -(-(short - room) // capacity))
    return int(samples_from[halves] + more.max(initial=0))


def _rounded_shares(values: NDArray[np.int64], counts: NDArray[np.int64], capacity: int) -> int:
    """u(k): length x counts as floor((k + 1) x / C) of k parts, or as k x / C where that is exact."""
    best = 0
    for k in range(1, MOST_FUNCTIONS + 1):
        scaled = values * (k + 1)
        parts = np.where(scaled % capacity == 0, values * k, scaled // capacity * capacity)
        best = max(best, _quotient(parts, counts, k * capacity))
    return best


def _cut_shares(values: NDArray[np.int64], counts: NDArray[np.int64], capacity: int) -> int:
    """f(unit): short lengths rounded down to units, long ones up to what they leave of the pack."""
    best = 0
    short = values[(2 * values <= capacity) & (values > 1)]
    units = np.unique(short[np.linspace(0, short.size - 1, min(short.size, MOST_FUNCTIONS)).astype(int)])
    for unit in units.tolist():
        whole = capacity // unit
        parts = np.where(
            2 * values > capacity,
            2 * (whole - (capacity - values) // unit),
            np.where(2 * values == capacity, whole, 2 * (values // unit)),
        )
        best = max(best, _quotient(parts, counts, 2 * whole))
    return best


def _quotient(parts: NDArray[np.int64], counts: NDArray[np.int64], whole: int) -> int:
    """Packs for samples of ``parts`` out of ``whole``, rounded up; exact beyond 64 bits."""
    if float(parts.max()) * float(counts.sum()) < 2**62:
        return -(-int(parts @ counts) // whole)
    return -(-sum(int(p) * int(c) for p, c in zip(parts, counts, strict=True)) // whole)
