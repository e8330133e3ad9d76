"""The strategies by name. Each takes a job, checked and counted, and says who sits in which pack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packing.balanced import balanced as even_packs
from packing.bounds import fewest_packs
from packing.dealt import Dealt, DealtByIds, DealtByRuns, Runs, empty_ids
from packing.job import Job
from packing.optimal import fewer_packs, runs_of, solvable


def best_fit(job: Job) -> Dealt:
    """Best-fit decreasing: each sample, longest first, into the pack it leaves the least room in.

    Exact, and worked out on the histogram: O(V log capacity) for V distinct lengths, then one pass over
    the samples. Equal samples go to packs in sample order, so equal inputs give equal packs everywhere.
    With a second budget samples are placed one by one, in O(1) each.
    """
    from packing import _kernels

    if job.plain:
        return _on_histogram(job, _kernels.best_fit)
    second, places = _needs(job)
    ids = empty_ids(job.lengths.size, job.lengths.size)
    ids[:] = -1
    packed = np.flatnonzero(job.lengths)
    order = packed[np.lexsort((-second[packed], -job.lengths[packed]))]
    num_packs = _kernels.best_fit_limits(
        order, job.lengths, second, places, job.capacity, job.max_second, job.max_samples, ids
    )
    alike = job.lengths, second, places
    return DealtByIds(pack_ids=ids, num_packs=int(num_packs), lengths=job.lengths, alike=alike)


def first_fit(job: Job) -> Dealt:
    """First-fit decreasing: each sample, longest first, into the first pack with room.

    Exact, on the histogram like ``best_fit``; about as tight. Packs that are opened early end up fullest.
    """
    from packing import _kernels

    return _on_histogram(job, _kernels.first_fit)


def next_fit(job: Job) -> Dealt:
    """Fill one pack at a time in the given order. O(I); keeps the order, and pays for it in packs."""
    from packing import _kernels

    ids = empty_ids(job.lengths.size, job.lengths.size)
    if job.plain:
        num_packs = _kernels.next_fit(job.lengths, job.capacity, job.max_samples, ids)
    else:
        second, places = _needs(job)
        num_packs = _kernels.next_fit_limits(
            job.lengths, second, places, job.capacity, job.max_second, job.max_samples, ids
        )
    return DealtByIds(pack_ids=ids, num_packs=int(num_packs), lengths=job.lengths, alike=None)


def optimal(job: Job) -> Dealt:
    """Close to the fewest packs there can be, and never more than ``best_fit``.

    Where best-fit stays above the lower bound: diving on the linear program over patterns, within a budget of
    steps (``packing.optimal``). That takes up to ``MOST_LENGTHS`` distinct lengths and no binding
    ``max_samples``; beyond, the better of best-fit and first-fit is the answer, which at those sizes stays
    within 0.1 % of the bound.
    """
    found = best_fit(job)
    values, counts = job.histogram.values, job.histogram.counts
    if found.num_packs <= fewest_packs(values, counts, job.capacity, job.max_samples):
        return found
    if job.max_samples < job.capacity // int(values[-1]) or not solvable(values, job.capacity):
        other = first_fit(job)
        return other if other.num_packs < found.num_packs else found
    patterns, proven = fewer_packs(values, counts, job.capacity)
    return DealtByRuns(runs=runs_of(patterns), histogram=job.histogram, proven=proven)


def balanced(job: Job) -> Dealt:
    """Packs of nearly equal ``cost`` under the token cap, in at most 1 % more packs than ``best_fit``."""
    return even_packs(job, lambda capacity: best_fit(replace(job, capacity=capacity)))


STRATEGIES: Mapping[str, Callable[[Job], Dealt]] = MappingProxyType(
    {
        "best_fit": best_fit,
        "first_fit": first_fit,
        "next_fit": next_fit,
        "optimal": optimal,
        "balanced": balanced,
    }
)

WITH_SECOND_BUDGET = ("best_fit", "next_fit")
"""Strategies that look at more than the lengths; the others work on the histogram of lengths alone."""


def _on_histogram(job: Job, kernel: Callable[..., Any]) -> DealtByRuns:
    histogram = job.histogram
    value, first, packs, per_pack, before, num_packs = kernel(
        histogram.values, histogram.counts, job.capacity, job.max_samples
    )
    runs = Runs(
        value=value, first=first, packs=packs, per_pack=per_pack, before=before, num_packs=int(num_packs)
    )
    return DealtByRuns(runs=runs, histogram=histogram)


def _needs(job: Job) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What each item needs of the second budget and of the samples of a pack, [I] each."""
    size = job.lengths.size
    second = np.zeros(size, np.int64) if job.second is None else job.second
    return second, np.ones(size, np.int64) if job.places is None else job.places
