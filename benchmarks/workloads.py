"""Seeded mixes of sample lengths, for benchmarks and tests."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.int32]


def lognormal(n: int, seed: int, *, mu: float = 6.5, sigma: float = 1.3) -> Lengths:
    """Chat and instruction data: mean about 1,500 tokens."""
    return _whole(np.random.default_rng(seed).lognormal(mu, sigma, n))


def pareto(n: int, seed: int, *, shortest: float = 200.0, tail: float = 1.2) -> Lengths:
    """A heavy tail: few samples hold most tokens."""
    return _whole(shortest * (1.0 + np.random.default_rng(seed).pareto(tail, n)))


def bimodal(n: int, seed: int) -> Lengths:
    """Short answers and long documents, as in mixes of chat with long-context data."""
    rng = np.random.default_rng(seed)
    long = rng.random(n) < 0.1
    return _whole(np.where(long, rng.lognormal(9.7, 0.4, n), rng.lognormal(5.5, 0.7, n)))


def uniform(n: int, seed: int, *, shortest: int = 1, longest: int = 2048) -> Lengths:
    """Every length as often as every other."""
    return np.random.default_rng(seed).integers(shortest, longest + 1, n).astype(np.int32)


def quantiles(n: int, seed: int, *, table: Mapping[float, float]) -> Lengths:
    """Lengths between published percentiles, log-linear between two of them. table: probability -> tokens."""
    probability = np.random.default_rng(seed).random(n)
    return _whole(np.exp(np.interp(probability, list(table), np.log(list(table.values())))))


WLB_LLM_TABLE = MappingProxyType(
    {0.0: 64, 0.5: 3227, 0.9: 5784, 0.95: 6110, 0.976: 8192, 0.99: 26_058}
    | {0.9911: 32_768, 0.9947: 65_536, 0.999: 119_794, 1.0: 124_913}
)
"""Percentiles of the document lengths published with WLB-LLM's and DistCA's artifacts (mean 3,962)."""

PROLONG_TABLE = MappingProxyType(
    {0.0: 64, 0.5: 1914, 0.9: 6051, 0.99: 16_270, 0.998: 32_768, 0.999: 47_398, 1.0: 340_149}
)
"""Percentiles of ProLong's document lengths as published with DistCA's artifact (mean 3,052)."""


def python_sources(n: int, seed: int) -> Lengths:
    """Real lengths: files of the Python standard library at four bytes a token, drawn again and again."""
    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    tokens = np.array([-(-file.stat().st_size // 4) for file in files])
    return _whole(np.random.default_rng(seed).choice(tokens[tokens > 0], n))


MIXES: Mapping[str, Callable[[int, int], Lengths]] = MappingProxyType(
    {
        "lognormal": lognormal,
        "pareto": pareto,
        "bimodal": bimodal,
        "uniform": uniform,
        "wlb_llm": partial(quantiles, table=WLB_LLM_TABLE),
        "prolong": partial(quantiles, table=PROLONG_TABLE),
        "python_sources": python_sources,
    }
)
"""Name -> (number of samples, seed) -> lengths, at least 1 token each and without an upper limit."""


def clipped(lengths: Lengths, longest: int) -> Lengths:
    """Lengths cut at the cap, as truncation leaves them."""
    return np.minimum(lengths, longest)


def mixed_instances(count: int, *, seed: int) -> Iterator[tuple[str, NDArray[np.int64], int]]:
    """Bin-packing instances in the manner of the published sets: name, lengths, capacity.

    A quarter each: uniform 20..100 into 150 and triplets that fill packs of 1000 exactly (after Falkenauer,
    Journal of Heuristics 2, 1996), heavy tails, and few distinct lengths.
    """
    rng = np.random.default_rng(seed)
    for i in range(count):
        n = int(rng.choice([60, 120, 249, 501]))
        if i % 4 == 0:
            yield f"triplets-{n}", _triplets(n // 3, rng), 1000
        elif i % 4 == 1:
            yield f"uniform-{2 * n}", rng.integers(20, 101, 2 * n), 150
        elif i % 4 == 2:
            yield f"heavy-{n}", np.clip((rng.pareto(1.2, n) + 1) * 30, 1, 2048).astype(np.int64), 2048
        else:
            yield f"few-{2 * n}", rng.choice(rng.integers(100, 700, 6), 2 * n), 1000


def _triplets(packs: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Three samples a pack, each between a quarter and a half of it, that fill it to the last token."""
    first = rng.integers(380, 490, packs)
    second = rng.integers(np.maximum(251, (1000 - first) // 2 - 60), (1000 - first) // 2 + 1)
    return rng.permutation(np.concatenate([first, second, 1000 - first - second]))


def _whole(tokens: NDArray[np.float64] | NDArray[np.int64]) -> Lengths:
    return np.clip(tokens, 1, 2**31 - 1).astype(np.int32)
