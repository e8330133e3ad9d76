"""Whole numbers that users give: one check, one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np

from packing.checks import whole


def check_count(name: str, value: Any, *, least: int = 1, or_none: bool = False) -> int:
    """``value`` as an int. Raises ValueError unless it is a whole number of at least ``least``, no bool."""
    try:
        count = least - 1 if isinstance(value, (bool, np.bool_)) else whole(name, value)
    except ValueError:
        count = least - 1
    if count < least:
        also = " or None" if or_none else ""
        raise ValueError(f"{name} must be a whole number of at least {least}{also}, got {value!r}.")
    return count
