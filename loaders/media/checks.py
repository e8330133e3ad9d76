"""What numbers of media rules must be, each with the sentence that says so."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any


def check_counts(owner: Any, names: Sequence[str], least: int = 1) -> None:
    """Fields that are whole numbers of at least ``least``. Raises ValueError."""
    for name in names:
        value = getattr(owner, name)
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if not whole or value < least:
            raise ValueError(
                f"{type(owner).__name__}.{name} must be a whole number of at least {least}, got {value!r}."
            )


def check_amounts(owner: Any, names: Sequence[str], *, zero: bool = False) -> None:
    """Fields that are finite numbers above 0, or of at least 0 where ``zero`` says so. Raises ValueError."""
    for name in names:
        value = getattr(owner, name)
        number = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < 0 or (value == 0 and not zero):
            kind = "finite number of at least 0" if zero else "finite number above 0"
            raise ValueError(f"{type(owner).__name__}.{name} must be a {kind}, got {value!r}.")
