"""Packs of nearly equal cost under the token cap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packing.dealt import Dealt, DealtByIds, PackIds, empty_ids
from packing.job import Job

EXTRA_PACKS = 0.01
"""Packs above best-fit's, as a share: room in which costs can be evened out."""
CHEAPEST_SHARES = (1.0, 0.95, 0.8, 0.6, 0.4, 0.2, 0.1, 0.05)
"""Shares of the samples, costliest first, that look at cost; tried until the others find room."""
WORK = 200_000_000
"""Pairs of samples that the exchange looks at, about a second; it mostly ends after a thousandth of that."""


def balanced(job: Job, tight: Callable[[int], Dealt]) -> DealtByIds:
    """Even out the cost of packs, in at most 1 % more packs than best-fit makes.

    Samples, costliest first, go to the cheapest pack with room (longest processing time first, with a token
    cap); where room is scarce the last, cheap ones go where they leave least of it. A second start is
    best-fit with the lowest cap that needs no more packs: exchanges need room in every pack, and there it is
    spread evenly. Then the costliest pack exchanges samples with cheap ones as long as that lowers the
    maximum, down to max(mean, costliest sample).

    Args:
        job: what to pack; it has costs.
        tight: best-fit of the job with packs filled up to a number of tokens.
    """
    from packing import _kernels

    assert job.cost is not None
    # Fresh arrays of one type: each further type, and read-only arrays are one, would compile for seconds.
    job = replace(job, lengths=np.array(job.lengths, np.int64), cost=np.array(job.cost))
    assert job.cost is not None
    packed = np.flatnonzero(job.lengths)
    order = packed[np.lexsort((-job.lengths[packed], -job.cost[packed]))]
    num_packs = int(tight(job.capacity).num_packs * (1 + EXTRA_PACKS))
    if num_packs == 0:
        return _dealt(job, np.full(job.lengths.size, -1, np.int32))
    target = max(float(job.cost[packed].sum()) / num_packs, float(job.cost[packed].max()))
    starts = [_with_even_room(job, tight, num_packs)]
    for share in CHEAPEST_SHARES:
        dealt = _cheapest_then_tightest(job, order, int(share * order.size), num_packs)
        if dealt is not None:
            starts.insert(0, dealt)
            break
    slowest = [
        _kernels.even_out(ids, job.lengths, job.cost, num_packs, job.capacity, job.max_samples, target, WORK)
        for ids in starts
    ]
    return _dealt(job, starts[int(np.argmin(slowest))])


def _cheapest_then_tightest(
    job: Job, order: NDArray[np.int64], costly: int, num_packs: int
) -> PackIds | None:
    """[I] packs: the first ``costly`` of ``order`` go to the cheapest pack, the rest where it is tightest."""
    from packing import _kernels

    ids = empty_ids(job.lengths.size, num_packs)
    ids[:] = -1
    placed, room, samples = _kernels.deal_cheapest(
        order[:costly], job.lengths, job.cost, num_packs, job.capacity, job.max_samples, ids
    )
    if not placed:
        return None
    rest = order[costly:]
    rest = rest[np.argsort(-job.lengths[rest], kind="stable")]
    placed = _kernels.fill_tightest(rest, job.lengths, room, samples, job.capacity, job.max_samples, ids)
    return ids if placed else None


def _with_even_room(job: Job, tight: Callable[[int], Dealt], num_packs: int) -> PackIds:
    """[I] packs of best-fit filled up to the lowest limit that needs no more than ``num_packs``."""
    low, high = int(job.lengths.max()), job.capacity  # high is known to do
    if job.capacity - low > job.capacity // 64:
        low = job.capacity - job.capacity // 64
    while low < high:
        middle = (low + high) // 2
        if tight(middle).num_packs <= num_packs:
            high = middle
        else:
            low = middle + 1
    return tight(high).ids(0, job.lengths.size, 1)


def _dealt(job: Job, ids: PackIds) -> DealtByIds:
    """Leave out packs that nobody came to."""
    used = np.unique(ids[ids >= 0])
    number = np.full(int(used[-1]) + 1 if used.size else 0, -1, ids.dtype)
    number[used] = np.arange(used.size)
    assert job.cost is not None
    return DealtByIds(
        pack_ids=np.where(ids < 0, ids, number[ids]) if used.size else ids,
        num_packs=int(used.size),
        lengths=job.lengths,
        alike=(job.lengths, job.cost),
    )


def excess(cost: NDArray[np.float64], ids: PackIds, num_packs: int) -> float:
    """Slowest pack over max(mean pack, costliest sample), minus 1; 0.0: as many packs cannot do better."""
    load = np.zeros(num_packs)
    np.add.at(load, ids[ids >= 0], cost[ids >= 0])
    if not num_packs or not load.any():
        return 0.0
    return float(load.max() / max(load.mean(), cost[ids >= 0].max()) - 1)
