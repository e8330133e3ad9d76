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


COMMONCRAWL_TABLE = MappingProxyType(
    {0.0: 32, 0.5: 400, 0.8788: 1024, 0.9934: 4096, 0.9992: 8192, 0.9999: 32_768, 1.0: 78_000}
)
"""Web pages: percentiles of Wikipedia's lengths as published by Skrull; the median is assumed."""

GITHUB_TABLE = MappingProxyType(
    {0.0: 32, 0.5: 900, 0.9: 5000, 0.97: 12_000, 0.99: 24_000, 0.996: 55_000, 0.9984: 131_072}
    | {0.9994: 262_144, 1.0: 1_000_000}
)
"""Code: 16 % of the tokens in samples above 128K, 10 % above 256K, as ByteScale publishes of GitHub.

The percentiles between are assumed so that these two shares come out (drawn: 17 and 11 %).
"""

CHAT_TABLE = MappingProxyType(
    {0.0: 16, 0.5: 350, 0.8712: 1024, 0.9935: 4096, 0.9987: 8192, 0.9998: 32_768, 1.0: 131_072}
)
"""Conversations: percentiles of LMSYS-Chat-1M as published by Skrull; the median is assumed."""

LONG_SFT_TABLE = MappingProxyType(
    {0.0: 16, 0.2192: 1024, 0.3148: 4096, 0.4043: 8192, 0.9986: 32_768, 1.0: 99_000}
)
"""Long instructions, two humps: percentiles of ChatQA2-Long-SFT as published by Skrull."""


def images(n: int, seed: int, *, per_sample: tuple[int, int]) -> Lengths:
    """Text with pictures: log-normal sides, a token for each 28 x 28 pixels, 4 to 16,384 of them a picture.

    The grid is Qwen2-VL's; no percentiles of public picture sets are known here, so the sides are assumed
    (median 700 pixels). per_sample: fewest and most pictures.
    """
    rng = np.random.default_rng(seed)
    count = rng.integers(per_sample[0], per_sample[1] + 1, n)
    sides = rng.lognormal(np.log(700), 0.5, (int(count.sum()), 2))
    patches = np.clip(np.ceil(sides / 28).prod(axis=1), 4, 16_384)
    pictures = np.add.reduceat(patches, np.cumsum(count) - count)
    return _whole(pictures + rng.lognormal(5.0, 0.8, n))


def video(n: int, seed: int) -> Lengths:
    """Clips: log-normal seconds (median 15), 2 frames a second, 128 to 512 tokens for each pair of frames."""
    rng = np.random.default_rng(seed)
    return _whole(np.ceil(rng.lognormal(np.log(15), 0.9, n)) * rng.integers(128, 513, n) + 50)


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
        "commoncrawl": partial(quantiles, table=COMMONCRAWL_TABLE),
        "github": partial(quantiles, table=GITHUB_TABLE),
        "chat": partial(quantiles, table=CHAT_TABLE),
        "long_sft": partial(quantiles, table=LONG_SFT_TABLE),
        "single_image": partial(images, per_sample=(1, 1)),
        "multi_image": partial(images, per_sample=(2, 8)),
        "video": video,
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
