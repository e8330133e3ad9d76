"""How long the samples are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer import admission
from balancer.topology import Topology
from loaders.cli.plan_report import Admitted
from loaders.reporting.question import Setting

_BINS_AN_OCTAVE = 3
_MOST_LISTED = 1000
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Profile:
    """Lengths of all samples that have tokens, those that cannot fit included. Axis: B = bins."""

    samples: int
    tokens: int
    longest: int
    mean: float
    quantiles: dict[str, int]
    empty: int
    """Samples without tokens, left out."""
    edges: NDArray[np.int64]
    """[B + 1] Bin b holds lengths ``edges[b] .. edges[b + 1] - 1``; a third of an octave."""
    bin_samples: NDArray[np.int64]
    """[B]"""
    bin_tokens: NDArray[np.int64]
    """[B]"""
    needed_degree: dict[int, int]
    """Samples by the smallest allowed degree that holds them at the given cap."""
    refused: int
    """Samples that no allowed degree can hold."""
    refused_tokens: int
    refused_listed: tuple[tuple[str, int, int], ...]
    """(origin, row, tokens) of the longest of them, at most 1,000."""
    longest_admitted: int


def profile(admitted: Admitted, *, topology: Topology, given: Setting) -> Profile:
    """Count. Cost: O(S log S) for the quantiles."""
    refused = np.array([tokens for _, _, tokens in admitted.too_long], np.int64)
    lengths = np.concatenate([admitted.lengths, refused])
    edges = _edges(lengths)
    place = np.searchsorted(edges, lengths, side="right") - 1
    fits = admission(
        admitted.lengths, topology=topology, max_tokens=given.max_tokens, cp_degrees=given.cp_degrees
    )
    listed = sorted(admitted.too_long, key=lambda one: (-one[2], one[1]))[:_MOST_LISTED]
    total = max(lengths.size, 1)
    return Profile(
        samples=lengths.size,
        tokens=int(lengths.sum()),
        longest=int(lengths.max(initial=0)),
        mean=float(lengths.sum()) / total,
        quantiles={
            name: int(np.quantile(lengths, share, method="higher")) if lengths.size else 0
            for name, share in _SHARES.items()
        },
        empty=admitted.num_empty,
        edges=edges,
        bin_samples=np.bincount(place, minlength=edges.size - 1).astype(np.int64),
        bin_tokens=_sums(place, lengths, edges.size - 1),
        needed_degree={int(degree): int(count) for degree, count in fits.by_degree.items()},
        refused=refused.size,
        refused_tokens=int(refused.sum()),
        refused_listed=tuple(listed),
        longest_admitted=int(admitted.lengths.max(initial=0)),
    )


def _edges(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """[B + 1] whole numbers, at least two, that enclose all lengths."""
    if not lengths.size:
        return np.array([1, 2], np.int64)
    first = int(np.floor(np.log2(lengths.min()) * _BINS_AN_OCTAVE))
    last = int(np.floor(np.log2(lengths.max()) * _BINS_AN_OCTAVE)) + 2
    edges = np.unique(np.round(2.0 ** (np.arange(first, last + 1) / _BINS_AN_OCTAVE)).astype(np.int64))
    edges = edges[np.searchsorted(edges, lengths.min(), side="right") - 1 :]
    kept: NDArray[np.int64] = edges[: np.searchsorted(edges, lengths.max(), side="right") + 1]
    return kept


def _sums(place: NDArray[np.int64], lengths: NDArray[np.int64], bins: int) -> NDArray[np.int64]:
    """[bins] exact sums: a weighted bincount would round them to 53 bits."""
    sums = np.zeros(bins, np.int64)
    np.add.at(sums, place, lengths)
    return sums
