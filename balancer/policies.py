"""The ways to divide a step, one table: the default and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from balancer._kernels import place
from balancer._kernels.order import group_by
from balancer.planning import nested, waves
from balancer.planning.layout import Layout, layout_of, objective_ns, slots_of
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
    if len(problem) == 0:
        return pack_per_rank(problem, np.zeros(0, np.int64))
    candidates = []
    if problem.sync == "step":
        candidates.append(nested.divide(problem))
    if problem.sync == "micro_batch" or problem.micro_batches or problem.topology.pipeline_stages > 1:
        candidates.append(waves.divide(problem))
    if problem.micro_batches is not None:
        candidates = [c for c in candidates if slots_of(problem, c)[1] <= problem.micro_batches]
    return min(candidates, key=lambda layout: objective_ns(problem, layout))


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
