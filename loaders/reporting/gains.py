"""How much faster, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.costs.model import FitReport

RESAMPLES = 4000
LEVEL = 0.95
_MEDIAN_OF_NORMAL = 0.6745  # a normal error exceeds this many deviations half of the time


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """How many times as long another way takes."""

    over: str
    """Name of the other way."""
    times: float
    """Its time over the recommended setting's, all steps together."""
    low: float | None
    """95 % interval over the steps; ``None`` for fewer than two."""
    high: float | None
    low_with_fit: float | None = None
    """The same with the error of a fitted cost model; ``None`` where the cost was not fitted."""
    high_with_fit: float | None = None


def gain(
    over: str,
    other_s: NDArray[np.float64],
    best_s: NDArray[np.float64],
    *,
    fit: FitReport | None,
    seed: int = 0,
) -> Gain:
    """Bootstrap over paired steps.

    Args:
        over: name of the other way.
        other_s: [N] its step times.
        best_s: [N] step times of the recommended setting, the same steps.
        fit: the cost model's error on its measurements. It is taken as independent between the two ways,
            which makes the interval too wide: both are predicted by the same coefficients.
        seed: of the resampling.
    """
    times = float(other_s.sum() / best_s.sum())
    if other_s.size < 2:
        return Gain(over=over, times=times, low=None, high=None)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, other_s.size, (RESAMPLES, other_s.size))
    ratios = other_s[drawn].sum(axis=1) / best_s[drawn].sum(axis=1)
    low, high = _interval(ratios)
    if fit is None:
        return Gain(over=over, times=times, low=low, high=high)
    deviation = np.sqrt(2.0) * fit.median_error / _MEDIAN_OF_NORMAL
    low_fit, high_fit = _interval(ratios * np.exp(rng.normal(0.0, deviation, RESAMPLES)))
    return Gain(over=over, times=times, low=low, high=high, low_with_fit=low_fit, high_with_fit=high_fit)


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
