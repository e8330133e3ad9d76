"""What a strategy gets: checked lengths, limits and the histogram that most work on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packing.histogram import Histogram, count_lengths
from packing.items import Lengths

NO_LIMIT = 2**31 - 1
"""``max_samples`` where there is no limit."""


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
    second: NDArray[np.int64] | None = None
    """[I] what each item needs of a second budget, at most ``max_second``; None where there is none."""
    max_second: int = 0
    places: NDArray[np.int64] | None = None
    """[I] samples in each item, where items are groups; None for one each."""

    @property
    def plain(self) -> bool:
        """Whether items differ in nothing but their length, so that the histogram tells all."""
        return self.second is None and (self.places is None or self.max_samples >= NO_LIMIT)

    def part(self, index: NDArray[np.int64]) -> Job:
        """The job of some items only."""
        lengths = self.lengths[index]
        return replace(
            self,
            lengths=lengths,
            histogram=count_lengths(lengths, self.capacity),
            cost=None if self.cost is None else self.cost[index],
            second=None if self.second is None else self.second[index],
            places=None if self.places is None else self.places[index],
        )
