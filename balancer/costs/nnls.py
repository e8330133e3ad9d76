"""Least squares whose solution is nowhere negative."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def nonnegative_least_squares(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """[K] x >= 0 that minimises ``|a @ x - b|``, by the active-set method of Lawson and Hanson (1974).

    a: [N, K], b: [N]. Columns are scaled to unit length first, since seconds per pair and seconds per
    micro-batch differ by ten orders of magnitude.
    """
    norms = np.linalg.norm(a, axis=0)
    scale = np.where(norms > 0, norms, 1.0)
    scaled = a / scale
    x = np.zeros(a.shape[1])
    passive = np.zeros(a.shape[1], dtype=bool)
    tolerance = 1e-12 * max(float(np.abs(scaled.T @ b).max(initial=0.0)), 1e-300)
    for _ in range(10 * a.shape[1] + 10):
        gradient = scaled.T @ (b - scaled @ x)
        gradient[passive] = -np.inf
        entering = int(np.argmax(gradient))
        if gradient[entering] <= tolerance:
            break
        passive[entering] = True
        x = _descend(scaled, b, x, passive)
    return x / scale


def _descend(
    a: NDArray[np.float64], b: NDArray[np.float64], x: NDArray[np.float64], passive: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Least squares over the passive columns, dropping those that turn negative. Changes ``passive``."""
    while True:
        candidate = np.zeros_like(x)
        candidate[passive] = np.linalg.lstsq(a[:, passive], b, rcond=None)[0]
        falling = passive & (candidate <= 0)
        if not falling.any():
            return candidate
        steps = np.full(x.size, np.inf)
        steps[falling] = x[falling] / np.maximum(x[falling] - candidate[falling], 1e-300)
        first = int(np.argmin(steps))
        x = x + steps[first] * (candidate - x)
        passive[first] = False
        passive &= x > 0
        if not passive.any():
            return np.zeros_like(x)
        x = np.where(passive, x, 0.0)
