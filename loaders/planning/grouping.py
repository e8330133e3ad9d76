"""Steps whose slots have the same encoders on all ranks: samples with the same media go together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.plan import MicroBatches, StepPlan
from packing.table import SampleTable

Planner = Callable[..., StepPlan]


def media_sets(present: Mapping[str, NDArray[np.bool_]], size: int) -> NDArray[np.int64]:
    """[S] a number for the set of media kinds that each sample has; 0: none."""
    sets: NDArray[np.int64] = np.zeros(size, np.int64)
    for bit, kind in enumerate(sorted(present)):
        sets |= present[kind].astype(np.int64) << bit
    return sets


def plan_by_media(planner: Planner, table: SampleTable, sets: NDArray[np.int64], **options: Any) -> StepPlan:
    """A plan in which each slot's micro-batches all have the same media.

    Samples of each set are planned by themselves, on all ranks, and the slots of the sets follow one another:
    text first. A rank that has nothing in a slot with media still needs a filler there; there are fewer of
    them than without grouping, and more slots.

    Args:
        planner: `balancer.plan_step` or one like it.
        table: the step.
        sets: [S] from `media_sets`.
        options: the planner's.

    The lower bound is that of the step without grouping.
    """
    whole = planner(table, **options)
    numbers = np.unique(sets)
    if numbers.size < 2:
        return whole
    parts = []
    for number in numbers.tolist():
        rows = np.flatnonzero(sets == number)
        parts.append((rows, planner(table.take(rows), **options)))
    return _one_after_another(parts, whole)


def _one_after_another(parts: list[tuple[NDArray[np.int64], StepPlan]], whole: StepPlan) -> StepPlan:
    plans = [plan for _, plan in parts]
    batches = [plan.micro_batches for plan in plans]
    before_slots = np.cumsum([0, *(plan.num_slots for plan in plans)])
    before_samples = np.cumsum([0, *(one.order.size for one in batches)])
    joined = MicroBatches(
        first_rank=np.concatenate([one.first_rank for one in batches]),
        cp_degree=np.concatenate([one.cp_degree for one in batches]),
        slot=np.concatenate(
            [one.slot + np.int32(before) for one, before in zip(batches, before_slots[:-1], strict=True)]
        ),
        tokens=np.concatenate([one.tokens for one in batches]),
        cost_s=np.concatenate([one.cost_s for one in batches]),
        order=np.concatenate([rows[plan.order] for rows, plan in parts]),
        offsets=np.concatenate(
            [
                [0],
                *(one.offsets[1:] + before for one, before in zip(batches, before_samples[:-1], strict=True)),
            ]
        ).astype(np.int64),
    )
    return StepPlan(
        micro_batches=joined,
        ranks=whole.ranks,
        sync=whole.sync,
        num_slots=int(before_slots[-1]),
        rank_time_s=np.sum([plan.rank_time_s for plan in plans], axis=0),
        # no plan is below the bound, but the last bit of a sum of seconds may be
        time_s=max(sum(plan.time_s for plan in plans), whole.lower_bound_s),
        lower_bound_s=whole.lower_bound_s,
        policy=whole.policy,
    )
