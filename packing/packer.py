"""Lengths in, packs out: the one door."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packing.bounds import fewest_packs
from packing.checks import nearest, whole
from packing.dealt import Dealt, DealtByIds, DealtTogether, empty_ids
from packing.histogram import Histogram, count_lengths
from packing.items import OVERSIZE, Items, Lengths, as_lengths, fitting, without
from packing.job import NO_LIMIT, Job
from packing.packs import Packs
from packing.strategies import STRATEGIES, WITH_SECOND_BUDGET

MOST_TOKENS = 2**31 - 1  # boundaries inside a pack are int32 (cu_seq_lens)
MOST_SECOND = 2**31 - 1  # of the second budget in a pack, so that sums over a group fit 64 bits


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
    second: ArrayLike | None = None,
    max_second: int | None = None,
    groups: ArrayLike | None = None,
    sources: ArrayLike | None = None,
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
            its first tokens, ``"truncate_left"`` its last; ``"split"`` cuts it into full pieces and a rest. A
            group that does not fit, or a sample above ``max_second``, is an error or dropped, never cut.
        seed: None numbers packs in the order they were built, those with the longest samples first. A number
            gives ``packs.reshuffled(seed)``: mixed lengths throughout, other partners for every seed.
        second: [S] what each sample needs of a second budget, such as images or patches.
        max_second: what a pack may hold of it; for ``best_fit`` and ``next_fit``.
        groups: [S] whole numbers; samples of one number share a pack (preference pairs).
        sources: [S] whole numbers; samples of different numbers never share a pack.

    Raises:
        ValueError: an argument is out of range, or a sample does not fit under ``oversize="error"``.
    """
    given = as_lengths(lengths)
    max_tokens, align = whole("max_tokens", max_tokens), whole("align", align)
    max_samples = None if max_samples is None else whole("max_samples", max_samples)
    max_second = None if max_second is None else min(whole("max_second", max_second), MOST_SECOND)
    seed = None if seed is None else whole("seed", seed)
    _check(max_tokens, strategy, max_samples, align, oversize)
    size = given.size
    if oversize == "split" and not (cost is None and second is None and groups is None and sources is None):
        raise ValueError(
            "oversize='split' cuts plain samples; cost, second, groups and sources belong to whole ones. "
            "Drop or truncate over-long samples instead."
        )
    capacity = max_tokens // align
    items, units, histogram = _items(given, capacity, align, oversize)
    needs = None
    if second is not None or max_second is not None:
        needs = _second(second, max_second, size, strategy)
        items, units = _drop(items, units, needs, max_second, oversize, "samples", "max_second")
        histogram = count_lengths(units, capacity)
    job = Job(
        lengths=units,
        histogram=histogram,
        capacity=capacity,
        max_samples=NO_LIMIT if max_samples is None else min(max_samples, NO_LIMIT),
        cost=_costs(cost, size, strategy),
        second=needs,
        max_second=max_second or 0,
    )
    apart = None if sources is None else _column(sources, size, "sources")
    if groups is None:
        dealt, bound = _solve(job, strategy, apart)
    else:
        items, dealt, bound = _solve_groups(
            items, job, strategy, _column(groups, size, "groups"), apart, oversize
        )
    packs = Packs(items, dealt, max_tokens=max_tokens, align=align, bound=bound)
    return packs if seed is None else packs.reshuffled(seed)


def _items(given: Lengths, capacity: int, align: int, oversize: str) -> tuple[Items, Lengths, Histogram]:
    """Items that fit, and their lengths in units of ``align``, also counted."""
    units = _units(given, align)
    histogram = count_lengths(units, capacity)
    items = fitting(given, capacity * align, oversize, histogram.outside, histogram.empty)
    if items.lengths is given:
        return items, units, histogram
    units = _units(items.lengths, align)
    return items, units, count_lengths(units, capacity)


def _solve(job: Job, strategy: str, sources: NDArray[np.int64] | None) -> tuple[Dealt, Callable[[], int]]:
    """Packs of a job, and its lower bound; with ``sources`` [I], each source by itself."""
    if sources is None:
        return STRATEGIES[strategy](job), lambda: _bound(job)
    ids = empty_ids(job.lengths.size, job.lengths.size)
    ids[:] = -1
    parts: list[Job] = []
    num_packs = 0
    for source in np.unique(sources[job.lengths > 0]):
        index = np.flatnonzero(sources == source)
        part = job.part(index)
        dealt = STRATEGIES[strategy](part)
        own = dealt.ids(0, index.size, 1)
        ids[index] = np.where(own < 0, own, own + num_packs)
        num_packs += dealt.num_packs
        parts.append(part)
    columns = [job.lengths, sources, job.cost, job.second, job.places]
    alike = None if strategy == "next_fit" else tuple(column for column in columns if column is not None)
    whole = DealtByIds(pack_ids=ids, num_packs=num_packs, lengths=job.lengths, alike=alike)
    return whole, lambda: sum(_bound(part) for part in parts)


def _solve_groups(
    items: Items,
    job: Job,
    strategy: str,
    groups: NDArray[np.int64],
    sources: NDArray[np.int64] | None,
    oversize: str,
) -> tuple[Items, Dealt, Callable[[], int]]:
    """Pack groups as if each were one sample; a group keeps the order of its first sample."""
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    by_first = np.argsort(first)
    rank = np.empty_like(by_first)
    rank[by_first] = np.arange(by_first.size)
    group = rank[group]

    def total(column: NDArray[np.int64]) -> NDArray[np.int64]:
        sums = np.zeros(first.size, np.int64)
        np.add.at(sums, group, column)
        return sums

    tokens = job.lengths.astype(np.int64)
    limits = [(tokens, job.capacity, "max_tokens")]
    places = (tokens > 0).astype(np.int64)
    limits.append((places, job.max_samples, "max_samples"))
    if job.second is not None:
        limits.append((job.second * places, job.max_second, "max_second"))
    for column, limit, name in limits:
        items, tokens = _drop(
            items, tokens, total(column * (tokens > 0))[group], limit, oversize, "groups", name
        )
    kept = tokens > 0
    if sources is not None:
        source = sources[first[by_first]]
        mixed = np.flatnonzero(kept & (sources != source[group]))
        if mixed.size:
            raise ValueError(
                f"samples of one group must have one source; row {mixed[0]} has source {sources[mixed[0]]}, "
                f"but its group {groups[mixed[0]]} began in source {source[group[mixed[0]]]}."
            )
    cost = None
    if job.cost is not None:
        cost = np.zeros(first.size)
        np.add.at(cost, group[kept], job.cost[kept])
    lengths = total(tokens)
    whole = Job(
        lengths=lengths,
        histogram=count_lengths(lengths, job.capacity),
        capacity=job.capacity,
        max_samples=job.max_samples,
        cost=cost,
        second=None if job.second is None else total(job.second * kept),
        max_second=job.max_second,
        places=total(kept.astype(np.int64)),
    )
    if not whole.plain and strategy not in WITH_SECOND_BUDGET:
        raise ValueError(
            f"groups with max_samples need one of {', '.join(WITH_SECOND_BUDGET)}; strategy is {strategy!r}."
        )
    dealt, bound = _solve(whole, strategy, None if sources is None else source)
    return items, DealtTogether(groups=dealt, group=np.where(kept, group, -1)), bound


def _bound(job: Job) -> int:
    """Packs that no algorithm can go below."""
    values, counts = job.histogram.values, job.histogram.counts
    samples = NO_LIMIT if job.places is not None else job.max_samples
    bounds = [fewest_packs(values, counts, job.capacity, samples)]
    if job.places is not None:
        bounds.append(-(-int(job.places.sum()) // job.max_samples))
    if job.second is not None and job.max_second:
        bounds.append(-(-int(job.second[job.lengths > 0].sum()) // job.max_second))
    return max(bounds)


def _drop(
    items: Items,
    units: NDArray[np.int64] | Lengths,
    needs: NDArray[np.int64],
    limit: int | None,
    oversize: str,
    what: str,
    name: str,
) -> tuple[Items, Lengths]:
    """Take out items whose ``needs`` are above the limit, or refuse them."""
    assert limit is not None
    above = (needs > limit) & (units > 0)
    if not above.any():
        return items, units
    if oversize != "drop":
        row = int(np.argmax(above))
        raise ValueError(
            f"{int(above.sum())} rows cannot be packed: their {what} must stay within {name} = {limit}, "
            f"row {row} needs {needs[row]}. Raise {name}, or choose oversize='drop'."
        )
    return without(items, above), np.where(above, 0, units)


def _units(lengths: Lengths, align: int) -> Lengths:
    """Lengths in units of ``align`` tokens, rounded up."""
    return lengths if align == 1 else -(-lengths // align)


def _costs(cost: ArrayLike | None, num_samples: int, strategy: str) -> NDArray[np.float64] | None:
    if cost is None:
        if strategy == "balanced":
            raise ValueError("strategy 'balanced' needs cost=, the seconds of each sample.")
        return None
    if strategy != "balanced":
        raise ValueError(f"strategy {strategy!r} does not look at cost; leave it out or choose 'balanced'.")
    seconds = np.ascontiguousarray(cost, dtype=np.float64)
    if seconds.shape != (num_samples,):
        raise ValueError(f"cost must have one entry a sample, shape ({num_samples},); got {seconds.shape}.")
    bad = np.flatnonzero(~(np.isfinite(seconds) & (seconds >= 0)))
    if bad.size:
        raise ValueError(f"cost must be finite seconds of at least 0; row {bad[0]} has {seconds[bad[0]]}.")
    return seconds


def _second(
    second: ArrayLike | None, max_second: int | None, num_samples: int, strategy: str
) -> NDArray[np.int64]:
    if second is None or max_second is None or max_second < 0:
        raise ValueError(
            f"second= and max_second= belong together, the limit at least 0; got second "
            f"{'missing' if second is None else 'given'} and max_second {max_second}."
        )
    if strategy not in WITH_SECOND_BUDGET:
        raise ValueError(
            f"a second budget needs one of {', '.join(WITH_SECOND_BUDGET)}; strategy is {strategy!r}."
        )
    needs = _column(second, num_samples, "second")
    if needs.size and needs.min() < 0:
        raise ValueError(f"second must be at least 0; row {needs.argmin()} has {needs.min()}.")
    return needs


def _column(numbers: ArrayLike, num_samples: int, name: str) -> NDArray[np.int64]:
    column = np.asarray(numbers)
    if column.shape != (num_samples,) or (column.size and column.dtype.kind not in "iu"):
        raise ValueError(
            f"{name} must have one whole number a sample, shape ({num_samples},); got {column.dtype} of "
            f"shape {column.shape}."
        )
    return np.array(column, np.int64)


def _check(max_tokens: int, strategy: str, max_samples: int | None, align: int, oversize: str) -> None:
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        raise ValueError(
            f"no strategy {strategy!r}; there are {', '.join(STRATEGIES)}.{nearest(strategy, STRATEGIES)}"
        )
    if oversize not in OVERSIZE:
        raise ValueError(
            f"oversize must be one of {', '.join(OVERSIZE)}; got {oversize!r}.{nearest(oversize, OVERSIZE)}"
        )
    if max_samples is not None and max_samples < 1:
        raise ValueError(f"max_samples must be at least 1, or None for no limit; got {max_samples}.")
    if align < 1:
        raise ValueError(f"align must be at least 1; got {align}.")
    if not align <= max_tokens <= MOST_TOKENS:
        raise ValueError(
            f"max_tokens must be at least align = {align} and at most {MOST_TOKENS}, since boundaries inside "
            f"a pack are 32-bit; got {max_tokens}."
        )
