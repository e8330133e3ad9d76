"""Costs in, parts of nearly equal cost out: for code that has its own samples and wants only the division."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from balancer._kernels import partition as kernels
from balancer._kernels import place
from balancer._kernels.order import group_by
from balancer.planning.counts import check_count
from balancer.planning.problem import Ints

STEPS = 2_000
"""Swaps and moves after the greedy division."""


def partition(costs: ArrayLike, parts: int, *, equal_size: bool = False) -> list[Ints]:
    """Divide items into ``parts`` of nearly equal cost, as lists of their indices.

    Longest processing time first; then the largest part trades with others while that lowers it. With
    ``equal_size`` every part gets as many items as every other (the first ``len(costs) % parts`` one more):
    a count-capped greedy, which may pair the largest item with the smallest ones of all. Ties break by
    index, so equal inputs give equal parts.

    Args:
        costs: [S] finite numbers of at least 0, in any unit.
        parts: at least 1.
        equal_size: whether all parts hold the same number of items.

    Raises:
        ValueError: costs that are negative or not finite, or no part.

    Cost: O(S log S + S log parts), and O(items of a part) for each trade.
    """
    try:
        given = np.asarray(costs, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"costs must be one row of finite numbers of at least 0, got {costs!r}.") from error
    if given.ndim != 1 or not np.all(np.isfinite(given) & (given >= 0)):
        wrong = np.flatnonzero(~(np.isfinite(given) & (given >= 0)))
        raise ValueError(
            f"costs must be one row of finite numbers of at least 0, got shape {given.shape}"
            + (f" with {given.ravel()[wrong[0]]!r} at {wrong[0]}." if wrong.size else ".")
        )
    parts = check_count("parts", parts)
    order = np.argsort(-given, kind="stable")
    bits = max(1, (parts - 1).bit_length())
    # No part exceeds mean + largest by the greedy; the low bits of a heap key hold its index.
    most = max(float(given.sum()) / parts + float(given.max(initial=0.0)), 1e-280)
    work = np.floor(given[order] / most * 2.0 ** (60 - bits) + 0.5).astype(np.int64)
    load = np.zeros(parts, np.int64)
    if equal_size:
        sizes = np.full(parts, given.size // parts)
        sizes[: given.size % parts] += 1
        part_of = kernels.least_loaded_sized(work, load, sizes, bits)
    else:
        part_of = place.least_loaded(work, load, bits).astype(np.int64)
    items, offsets = group_by(part_of, parts)
    kernels.trade(work, items, offsets, load, not equal_size, STEPS, 1e-6, part_of)
    items, offsets = group_by(part_of, parts)
    return [np.sort(order[items[offsets[p] : offsets[p + 1]]]) for p in range(parts)]
