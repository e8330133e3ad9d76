"""How many pairs of tokens a layer's attention visits.

A pattern is a string, so that it prints, hashes and travels as JSON: ``"causal"``, ``"full"``,
``"window:512"`` (each token sees itself and the 511 before it), ``"chunked:256"`` (causal inside chunks),
``"prefix:576"`` (the first 576 tokens see each other, the rest is causal), ``"block:256"`` (tokens of a
block see each other and all earlier blocks), ``"linear"`` (no pairs). A stack of unlike layers is a sum:
``"8*causal + 24*linear"``; its pairs are the sum over its layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.int64]

MAX_LENGTH = 2**31 - 1
"""Longest sequence: beyond it the square no longer fits 64 bits, nor cu_seqlens their 32."""


def _causal(n: Lengths, _: int) -> Lengths:
    # A shift takes a tenth of the time of // 2; the product fits 63 bits up to MAX_LENGTH.
    return (n * (n + 1)) >> 1


def _full(n: Lengths, _: int) -> Lengths:
    return n * n


def _window(n: Lengths, size: int) -> Lengths:
    seen: Lengths = np.minimum(n, size)
    return _causal(seen, 0) + (n - seen) * seen


def _chunked(n: Lengths, size: int) -> Lengths:
    return (n // size) * (size * (size + 1) // 2) + _causal(n % size, 0)


def _prefix(n: Lengths, size: int) -> Lengths:
    # On top of causal, the prefix also sees forward: the strict upper triangle of its square.
    seen: Lengths = np.minimum(n, size)
    return _causal(n, 0) + seen * (seen - 1) // 2


def _block(n: Lengths, size: int) -> Lengths:
    rest = n % size
    return _causal(n, 0) + (n // size) * (size * (size - 1) // 2) + rest * (rest - 1) // 2


def _linear(n: Lengths, _: int) -> Lengths:
    return np.zeros_like(n)


PATTERNS: MappingProxyType[str, Callable[[Lengths, int], Lengths]] = MappingProxyType(
    {
        "causal": _causal,
        "full": _full,
        "window": _window,
        "chunked": _chunked,
        "prefix": _prefix,
        "block": _block,
        "linear": _linear,
    }
)
SIZED = frozenset({"window", "chunked", "prefix", "block"})

_TERM = re.compile(r"(?:(?P<layers>\d+)\s*\*\s*)?(?P<name>[a-z]+)(?::(?P<size>\d+))?")


def parse_attention(attention: str) -> tuple[tuple[int, str, int], ...]:
    """(layers, pattern, size) of each term of ``attention``.

    Raises:
        ValueError: a bad term, which it names.
        TypeError: not a string.
    """
    if not isinstance(attention, str):
        raise TypeError(
            f"attention must be a string such as 'causal', 'window:512' or '8*causal + 24*linear', got "
            f"{attention!r}."
        )
    return _parsed(attention)


@lru_cache(maxsize=256)
def _parsed(attention: str) -> tuple[tuple[int, str, int], ...]:
    terms = []
    for text in attention.split("+"):
        match = _TERM.fullmatch(text.strip())
        name = match["name"] if match else ""
        if match is None or name not in PATTERNS or (name in SIZED) != (match["size"] is not None):
            raise ValueError(
                f"attention must be a sum of patterns such as 'causal', 'full', 'linear', 'window:512', "
                f"'chunked:256', 'prefix:576', 'block:256' or '8*causal + 24*linear', got {text.strip()!r} "
                f"in {attention!r}."
            )
        layers, size = int(match["layers"] or 1), int(match["size"] or 0)
        if layers < 1 or (name in SIZED and not 1 <= size <= MAX_LENGTH):
            raise ValueError(
                f"attention {attention!r}: layers and sizes must be at least 1, got {text.strip()}."
            )
        terms.append((layers, name, size))
    return tuple(terms)


def attended_pairs(lengths: Lengths, attention: str = "causal") -> Lengths:
    """[S] query-key pairs of each sequence, exact, summed over the layers of ``attention``.

    lengths: [S] int64, each in ``0..MAX_LENGTH``, unchecked.

    Raises:
        OverflowError: the sum over layers does not fit 64 bits.
    """
    terms = parse_attention(attention)
    if len(terms) == 1 and terms[0][0] == 1:
        return PATTERNS[terms[0][1]](lengths, terms[0][2])
    total = np.zeros_like(lengths)
    longest = int(lengths.max(initial=0))
    if sum(layers for layers, _, _ in terms) * longest * longest >= 2**63:
        raise OverflowError(
            f"attention {attention!r}: pairs of {longest} tokens, summed over layers, exceed 64 bits. "
            "Give quadratic per pair of the whole stack and name one pattern."
        )
    for layers, name, size in terms:
        total += layers * PATTERNS[name](lengths, size)
    return total
