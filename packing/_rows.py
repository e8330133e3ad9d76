"""Bare questions about a row of numbers that all packages ask, several times a step.

numpy takes 2 us for each of them however short the row is, these 0.3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packing._jit import kernel


@kernel
def extremes(values: NDArray[Any]) -> tuple[Any, Any]:
    """(Least, most) of a row that is not empty."""
    least = most = values[0]
    for value in values:
        least = min(least, value)
        most = max(most, value)
    return least, most


@kernel
def int_sum(values: NDArray[np.integer[Any]]) -> int:
    """Sum of integers that fits 64 bits."""
    found = np.int64(0)
    for value in values:
        found += np.int64(value)
    return int(found)


@kernel
def float_sum(values: NDArray[np.integer[Any]]) -> float:
    """Sum of integers, which cannot run over."""
    found = 0.0
    for value in values:
        found += value
    return found
