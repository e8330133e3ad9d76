"""Costs read from a table of measurements instead of a formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.costs.checks import check_degree, check_lengths

_ROUNDING = 1 - 1e-9  # what a quotient of times may lose without having fallen


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MeasuredTable:
    """Seconds of one sample by degree and length, linear between lengths. Axes: D = degrees, K = lengths.

    Below the first length a cost is in proportion to the length. Beyond the last one seconds per token go on
    growing as between the last two; whoever asks is told by `CostModel`. Times must not fall with the length,
    nor rank-time (degree times seconds) with the degree: the planner's lower bound rests on both.
    """

    lengths: NDArray[np.int64]
    """[K] Increasing, at least 1."""
    degrees: tuple[int, ...]
    """[D] Increasing."""
    seconds: NDArray[np.float64]
    """[D, K]"""

    @classmethod
    def from_rows(
        cls, lengths: ArrayLike, seconds: ArrayLike | Mapping[int, ArrayLike], *, smooth: bool = False
    ) -> MeasuredTable:
        """A checked table.

        Args:
            lengths: [K] lengths that were measured, in any order.
            seconds: [K] seconds at degree 1, or such a row for each degree.
            smooth: replace times that fall where they must rise by the largest before them, instead of
                raising. Measurements of short samples are often that noisy.

        Raises:
            ValueError: lengths that repeat, times that are negative, not finite or (without ``smooth``) not
                monotone; names the entry.
        """
        num_tokens = check_lengths(lengths)
        rows = seconds if isinstance(seconds, Mapping) else {1: seconds}
        degrees = tuple(sorted(check_degree(degree) for degree in rows))
        table = np.array([np.asarray(rows[degree], dtype=np.float64) for degree in degrees])
        if num_tokens.size == 0 or table.shape != (len(degrees), num_tokens.size):
            raise ValueError(
                f"a measured table needs one time for each of {num_tokens.size} lengths and {len(degrees)} "
                f"degrees, at least one of each, got shape {table.shape}."
            )
        order = np.argsort(num_tokens, kind="stable")
        num_tokens, table = num_tokens[order], table[:, order]
        if num_tokens[0] < 1 or np.any(np.diff(num_tokens) == 0):
            raise ValueError("a measured table's lengths must be at least 1 and differ from each other.")
        if not np.all(np.isfinite(table) & (table >= 0)):
            d, k = np.argwhere(~(np.isfinite(table) & (table >= 0)))[0]
            raise ValueError(
                f"measured times must be finite, 0 or more; degree {degrees[d]}, length {num_tokens[k]} "
                f"has {table[d, k]}."
            )
        monotone = _running_maxima(table, degrees)
        if smooth:
            table = monotone
        elif np.any(table < monotone * _ROUNDING):
            d, k = np.argwhere(table < monotone * _ROUNDING)[0]
            raise ValueError(
                f"measured times must rise with the length, and degree * time with the degree: degree "
                f"{degrees[d]}, length {num_tokens[k]} has {table[d, k]:.6g} s where at least "
                f"{monotone[d, k]:.6g} s are due. Measure again, or pass smooth=True to take running maxima."
            )
        return cls(lengths=num_tokens, degrees=degrees, seconds=table)

    def __call__(self, num_tokens: NDArray[np.int64], cp_degree: int) -> NDArray[np.float64]:
        """[S] seconds at ``cp_degree``. Raises ValueError for a degree that was not measured."""
        if cp_degree not in self.degrees:
            raise ValueError(
                f"cp_degree {cp_degree} was not measured; the table has {', '.join(map(str, self.degrees))}. "
                "Measure it, or allow only measured degrees."
            )
        return _interpolate(num_tokens, self.lengths, self.seconds[self.degrees.index(cp_degree)])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "lengths": self.lengths.tolist(),
            "seconds": {
                str(degree): row.tolist() for degree, row in zip(self.degrees, self.seconds, strict=True)
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MeasuredTable:
        """The table that `to_dict` wrote."""
        return cls.from_rows(data["lengths"], {int(degree): row for degree, row in data["seconds"].items()})


def _running_maxima(table: NDArray[np.float64], degrees: tuple[int, ...]) -> NDArray[np.float64]:
    """[D, K] the least monotone table that is nowhere below ``table``."""
    monotone = np.maximum.accumulate(table, axis=1)
    for d in range(1, len(degrees)):
        monotone[d] = np.maximum(monotone[d], monotone[d - 1] * degrees[d - 1] / degrees[d])
    return monotone


def _interpolate(
    num_tokens: NDArray[np.int64], lengths: NDArray[np.int64], seconds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[S] seconds. Plain ufuncs, since np.interp may fuse multiply and add on some platforms only."""
    x = np.concatenate([[0.0], lengths.astype(np.float64)])
    y = np.concatenate([[0.0], seconds])
    n = num_tokens.astype(np.float64)
    right = np.clip(np.searchsorted(x, n, side="left"), 1, x.size - 1)
    slope = (y[right] - y[right - 1]) / (x[right] - x[right - 1])
    inside = y[right - 1] + slope * (n - x[right - 1])
    rate = y[1:] / x[1:]
    growth = max((rate[-1] - rate[-2]) / (x[-1] - x[-2]), 0.0) if rate.size > 1 else 0.0
    outside = n * (rate[-1] + growth * (n - x[-1]))
    seconds_at: NDArray[np.float64] = np.where(n > x[-1], outside, inside)
    return seconds_at
