"""Checks that several modules share."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray


def whole(name: str, value: Any) -> int:
    """``value`` as an int, numpy's too. Raises ValueError unless it is a whole number."""
    if isinstance(value, (float, np.floating)) and value.is_integer():
        return int(value)
    try:
        return operator.index(value)
    except TypeError as error:
        raise ValueError(f"{name} must be a whole number; got {value!r}.") from error


def exact_total(numbers: NDArray[np.int64]) -> int:
    """The sum of numbers of at least 0, also beyond 64 bits."""
    return (int((numbers >> 32).sum()) << 32) + int((numbers & 0xFFFFFFFF).sum())
