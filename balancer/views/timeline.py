"""When each rank is predicted to be busy: what the picture and the trace draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.plan import StepPlan


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Timeline:
    """Axis: N = (micro-batch, rank) pairs in execution order."""

    micro_batch: NDArray[np.int64]
    """[N] Index into the plan's micro-batches."""
    rank: NDArray[np.int64]
    """[N]"""
    start_s: NDArray[np.float64]
    """[N] Seconds from the start of the step."""
    end_s: NDArray[np.float64]
    """[N]"""


def timeline(plan: StepPlan) -> Timeline:
    """Predicted start and end of every micro-batch on every rank of its group.

    A group starts when the last of its ranks is free and, where ranks meet in every slot, when the slot
    before has ended everywhere. A plan holds neither speeds nor pipeline stages, only each rank's total: its
    micro-batches are stretched in proportion to fill that.
    """
    batches = plan.micro_batches
    stretch = _stretch(plan)
    free = np.zeros(plan.ranks)
    slot_end, slot = 0.0, 0
    starts, ends = np.zeros(len(batches)), np.zeros(len(batches))
    for m in range(len(batches)):
        group = slice(int(batches.first_rank[m]), int(batches.first_rank[m] + batches.cp_degree[m]))
        if plan.sync == "micro_batch" and batches.slot[m] != slot:
            slot, slot_end = int(batches.slot[m]), float(free.max())
        starts[m] = max(float(free[group].max()), slot_end)
        ends[m] = starts[m] + batches.cost_s[m] * stretch[group].max()
        free[group] = ends[m]
    degree = batches.cp_degree.astype(np.int64)
    owner = np.repeat(np.arange(len(batches)), degree)
    within = np.arange(owner.size) - np.repeat(np.cumsum(degree) - degree, degree)
    return Timeline(
        micro_batch=owner,
        rank=batches.first_rank[owner] + within,
        start_s=starts[owner],
        end_s=ends[owner],
    )


def rank_sums(plan: StepPlan, values: NDArray[np.number]) -> NDArray[np.float64]:
    """[R] sum over the micro-batches that each rank takes part in. values: [M]."""
    batches = plan.micro_batches
    edges = np.zeros(plan.ranks + 1)
    np.add.at(edges, batches.first_rank, values)
    np.subtract.at(edges, batches.first_rank + batches.cp_degree, values)
    sums: NDArray[np.float64] = np.cumsum(edges)[:-1]
    return sums


def _stretch(plan: StepPlan) -> NDArray[np.float64]:
    """[R] a rank's predicted seconds over those of its micro-batches at nominal speed."""
    nominal = rank_sums(plan, plan.micro_batches.cost_s)
    return np.divide(plan.rank_time_s, nominal, out=np.ones(plan.ranks), where=nominal > 1e-12)
