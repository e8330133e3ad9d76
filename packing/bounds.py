"""How few packs there can be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def fewest_packs(
    values: NDArray[np.int64], counts: NDArray[np.int64], capacity: int, max_samples: int
) -> int:
    """A number of packs that no packing of the histogram can go below.

    Args:
        values: [V] descending lengths in ``1..capacity``.
        counts: [V] samples of each.
        capacity: tokens of a pack.
        max_samples: most samples of a pack.
    """
    if values.size == 0:
        return 0
    tokens = sum(int(v) * int(c) for v, c in zip(values.tolist(), counts.tolist(), strict=True))
    alone = int(counts[2 * values > capacity].sum())
    return max(-(-tokens // capacity), alone, -(-int(counts.sum()) // max_samples))
