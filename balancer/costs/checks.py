"""Checks that several cost modules share."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.costs.attention import MAX_LENGTH


def check_coefficient(name: str, value: Any, *, positive: bool = False) -> float:
    """``value`` as a float. Raises ValueError unless it is finite and not negative (or positive)."""
    try:
        # float() would read "3" and True as numbers, which are slips: a column of text, a flag in its place
        number = math.nan if isinstance(value, str | bytes | bool | np.bool_) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        kind = "positive, finite number" if positive else "finite number of at least 0"
        raise ValueError(f"{name} must be a {kind}, got {value!r}.")
    return number


def check_lengths(lengths: ArrayLike) -> NDArray[np.int64]:
    """[S] lengths as int64. Raises ValueError naming the first row that is not in ``0..2**31 - 1``."""
    from packing._rows import extremes  # numba: not paid for by `import balancer`

    given = np.atleast_1d(np.asarray(lengths))
    if given.ndim != 1:
        raise ValueError(f"lengths must be one row of numbers, got shape {given.shape}.")
    if given.dtype.kind not in "iu":
        if given.size and (given.dtype.kind != "f" or not np.all(np.isfinite(given) & (given % 1 == 0))):
            where = ""
            if given.dtype.kind == "f":
                row = int(np.flatnonzero(~(np.isfinite(given) & (given % 1 == 0)))[0])
                where = f", row {row} has {given[row]}"
            raise ValueError(f"lengths must be whole numbers of tokens, they are {given.dtype}{where}.")
        given = np.clip(given.astype(np.float64), -1, MAX_LENGTH + 1)
    if given.size:
        low, high = extremes(given) if given.dtype == np.int64 else (given.min(), given.max())
        if low < 0 or high > MAX_LENGTH:
            row = int(np.flatnonzero((given < 0) | (given > MAX_LENGTH))[0])
            found = np.atleast_1d(lengths)[row]
            way_out = "" if found < 0 else " Split or drop longer samples before planning."
            raise ValueError(f"lengths must be 0..{MAX_LENGTH} tokens, row {row} has {found}.{way_out}")
    return given.astype(np.int64, copy=False)


def check_degree(cp_degree: Any) -> int:
    """A CP degree as int. Raises ValueError unless it is a whole number of at least 1."""
    return check_count("cp_degree", cp_degree)


def check_count(name: str, value: Any) -> int:
    """``value`` as int. Raises ValueError unless it is a whole number of at least 1."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or number < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    return number
