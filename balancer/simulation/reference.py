"""The slow, obvious twin of the walk: every operation of every GPU, and what it waits for."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from balancer.plan import StepPlan

Operation = tuple[str, int]
"""("F" or "B", slot)."""


def stage_order(stage: int, stages: int, slots: int) -> list[Operation]:
    """Operations of one stage: forward while it may hold one more micro-batch, otherwise backward.

    A stage holds at most as many as there are stages from it to the last, itself included.
    """
    order: list[Operation] = []
    forwards = backwards = 0
    while backwards < slots:
        if forwards < slots and forwards - backwards < stages - stage:
            order.append(("F", forwards))
            forwards += 1
        else:
            order.append(("B", backwards))
            backwards += 1
    return order


def walk_time(plan: StepPlan, pace: NDArray[np.float64], *, idle_s: float, forward_share: float) -> float:
    """Seconds until the last GPU ends, by asking for every operation when its predecessors ended."""
    stages = pace.shape[1]
    orders = [stage_order(stage, stages, plan.num_slots) for stage in range(stages)]
    together = plan.sync == "micro_batch"
    where = {
        (int(slot), rank): m for m, slot in enumerate(plan.micro_batches.slot) for rank in _members(plan, m)
    }

    def nominal_s(direction: str, slot: int, rank: int) -> float:
        part = forward_share if direction == "F" else 1 - forward_share
        m = where.get((slot, rank))
        return part * (float(plan.micro_batches.cost_s[m]) if m is not None else idle_s)

    @cache
    def end(direction: str, slot: int, rank: int, stage: int) -> float:
        """When this GPU is done with the operation, or, where it has none, with what came before."""
        partners = range(plan.ranks)
        if not together:
            m = where.get((slot, rank))
            if m is None:
                return previous(direction, slot, rank, stage)
            partners = _members(plan, m)
        begin = max(previous(direction, slot, partner, stage) for partner in partners)
        if direction == "F" and stage > 0:
            begin = max(begin, *(end("F", slot, partner, stage - 1) for partner in partners))
        if direction == "B" and stage < stages - 1:
            begin = max(begin, *(end("B", slot, partner, stage + 1) for partner in partners))
        return begin + max(nominal_s(direction, slot, p) * float(pace[p, stage]) for p in partners)

    def previous(direction: str, slot: int, rank: int, stage: int) -> float:
        place = orders[stage].index((direction, slot))
        return end(*orders[stage][place - 1], rank, stage) if place else 0.0

    last = [(order[-1], stage) for stage, order in enumerate(orders) if order]
    return max((end(*op, rank, s) for op, s in last for rank in range(plan.ranks)), default=0.0)


def _members(plan: StepPlan, m: int) -> range:
    first = int(plan.micro_batches.first_rank[m])
    return range(first, first + int(plan.micro_batches.cp_degree[m]))
