"""Lengths in, packs out: the one door, and the strategies behind it by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packing.balanced import balanced as even_packs
from packing.bounds import fewest_packs
from packing.dealt import Dealt, DealtByIds, DealtByRuns, Runs, empty_ids
from packing.histogram import count_lengths
from packing.items import OVERSIZE, Lengths, as_lengths, fitting
from packing.job import Job
from packing.optimal import fewer_packs, runs_of, solvable
from packing.packs import Packs

NO_LIMIT = 2**31 - 1
MOST_TOKENS = 2**31 - 1  # boundaries inside a pack are int32 (cu_seq_lens)


def best_fit(job: Job) -> Dealt:
    """Best-fit decreasing: each sample, longest first, into the pack it leaves the least room in.

    Exact, and worked out on the histogram: O(V log capacity) for V distinct lengths, then one pass over
    the samples. Equal samples go to packs in sample order, so equal inputs give equal packs everywhere.
    """
    from packing import _kernels

    return _on_histogram(job, _kernels.best_fit)


def first_fit(job: Job) -> Dealt:
    """First-fit decreasing: each sample, longest first, into the first pack with room.

    Exact, on the histogram like ``best_fit``; about as tight. Packs that are opened early end up fullest.
    """
    from packing import _kernels

    return _on_histogram(job, _kernels.first_fit)


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
    return even_packs(job, lambda cap: best_fit(replace(job, capacity=cap)))


def next_fit(job: Job) -> Dealt:
    """Fill one pack at a time in the given order. O(I); keeps the order, and pays for it in packs."""
    from packing import _kernels

    ids = empty_ids(job.lengths.size, job.lengths.size)
    num_packs = int(_kernels.next_fit(job.lengths, job.capacity, job.max_samples, ids))
    return DealtByIds(pack_ids=ids, num_packs=num_packs, lengths=job.lengths, alike=None)


STRATEGIES: Mapping[str, Callable[[Job], Dealt]] = MappingProxyType(
    {
        "best_fit": best_fit,
        "first_fit": first_fit,
        "next_fit": next_fit,
        "optimal": optimal,
        "balanced": balanced,
    }
)


def pack(
    lengths: ArrayLike,
    max_tokens: int,
    *,
    strategy: str = "best_fit",
    max_samples: int | None = None,
    align: int = 1,
    cost: ArrayLike | None = None,
    oversize: str = "error",
    seed: int | None = None,
) -> Packs:
    """Lay samples end to end into as few packs as the strategy finds.

    Args:
        lengths: [S] tokens of each sample, integers of at least 0. Empty samples are counted and skipped.
        max_tokens: tokens that a pack may hold. Always a limit, never a target.
        strategy: a name of ``STRATEGIES``.
        max_samples: most samples of a pack; None for no limit.
        align: pad each sample to a multiple of so many tokens inside its pack (context parallelism wants
            ``2 * cp_degree``, fp8 kernels 16); the cap applies to padded lengths.
        cost: [S] seconds of each sample; only for ``balanced``.
        oversize: what happens to a sample above ``max_tokens``: ``"error"``; ``"drop"``; ``"truncate"`` keeps
            its first tokens, ``"truncate_left"`` its last; ``"split"`` cuts it into full pieces and a rest.
        seed: None numbers packs in the order they were built, those with the longest samples first. A number
            gives ``packs.reshuffled(seed)``: mixed lengths throughout, other partners for every seed.

    Raises:
        ValueError: an argument is out of range, or a sample does not fit under ``oversize="error"``.
    """
    given = as_lengths(lengths)
    _check(max_tokens, strategy, max_samples, align, cost, oversize)
    capacity = max_tokens // align
    units = _units(given, align)
    histogram = count_lengths(units, capacity)
    items = fitting(given, capacity * align, oversize, histogram.outside, histogram.empty)
    if items.lengths is not given:
        units = _units(items.lengths, align)
        histogram = count_lengths(units, capacity)
    job = Job(
        lengths=units,
        histogram=histogram,
        capacity=capacity,
        max_samples=NO_LIMIT if max_samples is None else min(max_samples, NO_LIMIT),
        cost=None if cost is None else _costs(cost, given.size, items.sample),
    )
    packs = Packs(
        items,
        STRATEGIES[strategy](job),
        max_tokens=max_tokens,
        align=align,
        bound=lambda: fewest_packs(histogram.values, histogram.counts, capacity, job.max_samples),
    )
    return packs if seed is None else packs.reshuffled(seed)


def _on_histogram(job: Job, kernel: Callable[..., Any]) -> DealtByRuns:
    histogram = job.histogram
    value, first, packs, per_pack, before, num_packs = kernel(
        histogram.values, histogram.counts, job.capacity, job.max_samples
    )
    runs = Runs(
        value=value, first=first, packs=packs, per_pack=per_pack, before=before, num_packs=int(num_packs)
    )
    return DealtByRuns(runs=runs, histogram=histogram)


def _units(lengths: Lengths, align: int) -> Lengths:
    """Lengths in units of ``align`` tokens, rounded up."""
    return lengths if align == 1 else -(-lengths // align)


def _costs(cost: ArrayLike, num_samples: int, sample: NDArray[np.int64] | None) -> NDArray[np.float64]:
    seconds = np.ascontiguousarray(cost, dtype=np.float64)
    if seconds.shape != (num_samples,):
        raise ValueError(f"cost must have one entry a sample, shape ({num_samples},); got {seconds.shape}.")
    bad = np.flatnonzero(~(np.isfinite(seconds) & (seconds >= 0)))
    if bad.size:
        raise ValueError(f"cost must be finite seconds of at least 0; row {bad[0]} has {seconds[bad[0]]}.")
    if sample is not None:
        raise ValueError("cost belongs to whole samples: it cannot be used with oversize='split'.")
    return seconds


def _check(
    max_tokens: int, strategy: str, max_samples: int | None, align: int, cost: ArrayLike | None, oversize: str
) -> None:
    if strategy not in STRATEGIES:
        raise ValueError(f"no strategy {strategy!r}; there are {', '.join(STRATEGIES)}.")
    if oversize not in OVERSIZE:
        raise ValueError(f"oversize must be one of {', '.join(OVERSIZE)}; got {oversize!r}.")
    if max_samples is not None and max_samples < 1:
        raise ValueError(f"max_samples must be at least 1, or None for no limit; got {max_samples}.")
    if align < 1:
        raise ValueError(f"align must be at least 1; got {align}.")
    if not align <= max_tokens <= MOST_TOKENS:
        raise ValueError(
            f"max_tokens must be at least align = {align} and at most {MOST_TOKENS}, since boundaries inside "
            f"a pack are 32-bit; got {max_tokens}."
        )
    if strategy == "balanced" and cost is None:
        raise ValueError("strategy 'balanced' needs cost=, the seconds of each sample.")
    if strategy != "balanced" and cost is not None:
        raise ValueError(f"strategy {strategy!r} does not look at cost; leave it out or choose 'balanced'.")
