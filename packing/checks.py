"""Checks that several modules share."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
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


def nearest(name: object, known: Iterable[str]) -> str:
    """`` Did you mean 'best_fit'?``, to put behind a message on an unknown name; empty where none is near."""
    if not isinstance(name, str):
        return ""
    lowered = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=1)
    return f" Did you mean {lowered[near[0]]!r}?" if near else ""


def check_choice(name: str, value: Any, known: Iterable[str]) -> None:
    """Raises ValueError unless ``value`` is one of the names, and tells the nearest."""
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{name} must be one of {', '.join(names)}, got {value!r}.{nearest(value, names)}")
