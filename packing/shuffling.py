"""Other partners and another order for every epoch, with packs of the same sizes.

Equal samples are dealt to the same places from another starting point, a free choice for each length; pack
numbers go through a bijection ``p -> (a * p + b) mod P``. Both cost next to nothing, since dealing walks
through the places of a length anyway. The factor ``a`` is chosen so that every stretch of neighbouring
packs holds an even mix of all packs (a good lattice), which a random permutation does on average only.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1


def mixed(*words: int) -> int:
    """A 64-bit hash of integers (SplitMix64 steps), the same on every platform and version."""
    state = 0
    for word in words:
        state = (state ^ (int(word) & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def turns(values: NDArray[np.int64], counts: NDArray[np.int64], key: int) -> NDArray[np.int64]:
    """[V] place from which equal samples are dealt, in ``0..counts - 1``: a hash of key and value."""
    with np.errstate(over="ignore"):
        state = np.uint64(mixed(key)) ^ values.astype(np.uint64)
        state += np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return (state % counts.astype(np.uint64)).astype(np.int64)


def renumbering(num_packs: int, key: int) -> NDArray[np.uint64] | None:
    """Words a, floor(a * 2**64 / P), b, P of a bijection of ``0..P - 1``; None for fewer than two packs."""
    if num_packs < 2:
        return None
    factor, best = 1, -1.0
    for attempt in range(32):
        candidate = mixed(key, attempt) % (num_packs - 1) + 1
        if math.gcd(candidate, num_packs) != 1:
            continue
        evenness = _shortest_vector(candidate, num_packs) / math.sqrt(num_packs)
        if evenness > best:
            factor, best = candidate, evenness
        if evenness > 0.7:
            break
    shift = mixed(key, -1) % num_packs
    return np.array([factor, (factor << 64) // num_packs, shift, num_packs], np.uint64)


def _shortest_vector(factor: int, modulus: int) -> float:
    """Length of the shortest vector of the lattice (i, factor * i mod modulus), by Gauss's reduction."""
    short, long = (1, factor), (0, modulus)
    if short[0] ** 2 + short[1] ** 2 > modulus**2:
        short, long = long, short
    while True:
        norm = short[0] ** 2 + short[1] ** 2
        times = (2 * (short[0] * long[0] + short[1] * long[1]) + norm) // (2 * norm)
        long = (long[0] - times * short[0], long[1] - times * short[1])
        if long[0] ** 2 + long[1] ** 2 >= norm:
            return math.sqrt(norm)
        short, long = long, short
