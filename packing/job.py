"""What a strategy gets: checked lengths, limits and the histogram that most work on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packing.histogram import Histogram
from packing.items import Lengths


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Job:
    """Axis: I = items. Lengths and capacity count units of ``align`` tokens."""

    lengths: Lengths
    """[I] each in ``0..capacity``; items of length 0 belong into no pack."""
    histogram: Histogram
    """Of ``lengths``, with nothing outside."""
    capacity: int
    max_samples: int
    """Most items of a pack; at least 1, ``2**31 - 1`` where there is no limit."""
    cost: NDArray[np.float64] | None = None
    """[I] seconds of each item; only ``balanced`` reads it."""
