"""The order of several ranks' streams taken together: their samples in turn, the ranks one after another.

Sample j of rank r stands before all samples with a larger j, and before those of the same j on larger ranks;
a stream that has ended is passed over. So the order does not depend on who reads ahead, and steps that are
runs of it keep their size until all streams have ended.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

ENDLESS = int(np.iinfo(np.int64).max) // 4
"""End of a stream of which none is known."""


def first_in_turn(begun: Ints, ends: Ints, count: int) -> Ints:
    """[R] How many of the next ``count`` samples of the order each rank has.

    Args:
        begun: [R] samples of each stream that are done.
        ends: [R] samples that each stream has; `ENDLESS` where that is not known.
        count: samples wanted; fewer come where all streams end.

    Cost: O(R log count).
    """

    def before(turn: int) -> Ints:
        """[R] Samples of each stream that are not done and have a number below ``turn``."""
        counts: Ints = np.maximum(np.minimum(ends, turn) - begun, 0)
        return counts

    left = np.maximum(ends - begun, 0)
    if int(np.minimum(left, count).sum()) <= count:
        all_left: Ints = np.minimum(left, count)  # all there is, or a single stream
        return all_left
    first = int(begun.min())
    turns = range(first, int(begun.max()) + count + 1)
    # the last turn that fits as a whole
    turn = first + bisect_right(turns, count, key=lambda turn: int(before(turn).sum())) - 1
    counts = before(turn)
    in_turn = np.flatnonzero((begun <= turn) & (turn < ends))[: count - int(counts.sum())]
    counts[in_turn] += 1
    return counts


def in_turn(numbers: Ints, ranks: NDArray[np.int32], starts: Ints) -> Ints:
    """[S] The order of rows: by sample number, then by rank, then by piece.

    Args:
        numbers: [S] number of each row's sample in its stream.
        ranks: [S] rank of the stream.
        starts: [S] first token of the row within its sample.
    """
    return np.lexsort((starts, ranks, numbers))
