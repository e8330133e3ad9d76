"""The ways to divide a step, one table: the default and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from balancer._kernels import place
from balancer._kernels.order import group_by
from balancer.planning.layout import Layout, layout_of
from balancer.planning.problem import Ints, Problem

Policy = Callable[[Problem], Layout]


def pack_per_rank(problem: Problem, rank_of: Ints) -> Layout:
    """Micro-batches of the samples that each rank was given, by first fit in the problem's order."""
    order, offsets = group_by(rank_of, problem.ranks)
    bins = np.empty(len(problem), np.int64)
    used = place.first_fit(problem.num_tokens[order], offsets, problem.max_tokens, bins)
    first = np.concatenate([[0], np.cumsum(used)])
    batch_of = np.empty(len(problem), np.int64)
    batch_of[order] = first[rank_of[order]] + bins
    first_rank = np.repeat(np.arange(problem.ranks), used)
    return layout_of(batch_of, first_rank, np.ones_like(first_rank))


def equal_samples(problem: Problem) -> Layout:
    """Deal the samples round in table order, as a distributed sampler does; pack each rank's share."""
    return pack_per_rank(problem, problem.rows % problem.ranks)


def equal_tokens(problem: Problem) -> Layout:
    """Give each sample, longest first, to the rank with the fewest tokens."""
    return pack_per_rank(problem, _lightest_rank(problem, problem.num_tokens))


def balanced(problem: Problem) -> Layout:
    """The least predicted step time."""
    if problem.sync == "micro_batch":
        return waves(problem)
    return pack_per_rank(problem, _lightest_rank(problem, problem.work_ns(1)))


def waves(problem: Problem) -> Layout:
    """Packs of even work under the token cap, dealt in falling order, so that each slot's packs are alike."""
    ranks, capacity = problem.ranks, int(problem.max_tokens.min())
    work = problem.work_ns(1)
    slots = max(1, -(-int(problem.num_tokens.sum()) // (capacity * ranks)))
    while True:
        pack_of = place.even_packs(work, problem.num_tokens, slots * ranks, capacity, 16)
        if len(problem) == 0 or pack_of[-1] >= 0:
            break
        slots += 1
    load = np.zeros(slots * ranks, np.int64)
    np.add.at(load, pack_of, work)
    by_load = np.argsort(-load, kind="stable")
    used = int(np.count_nonzero(np.bincount(pack_of, minlength=slots * ranks)))
    place_of = np.empty(slots * ranks, np.int64)
    place_of[by_load] = np.arange(slots * ranks)
    index = np.arange(used)
    return layout_of(place_of[pack_of], index % ranks, np.ones(used, np.int64), slot=index // ranks)


def _lightest_rank(problem: Problem, weight: Ints) -> Ints:
    load = np.zeros(problem.ranks, np.int64)
    ranks: Ints = place.least_loaded(weight, load, max(1, (problem.ranks - 1).bit_length()))
    return ranks.astype(np.int64)


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "equal_samples": equal_samples,
        "equal_tokens": equal_tokens,
        "balanced": balanced,
    }
)
