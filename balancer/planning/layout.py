"""A division of the samples, and the plan it makes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer._kernels import sums
from balancer._kernels.order import group_by
from balancer._kernels.waves import finish_times
from balancer.plan import MicroBatches, StepPlan
from balancer.planning.problem import Ints, Problem, padded

SPEED_UNIT = 1 << 16
"""Parts of a nominal nanosecond in which slowness is counted, so that times stay integers."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layout:
    """What a policy decides. Axes: M = micro-batches, in the order every rank runs its own; S = samples."""

    first_rank: Ints
    """[M] First rank of the group."""
    cp_degree: Ints
    """[M] Ranks of the group."""
    order: Ints
    """[S] Samples in the problem's numbering, micro-batch after micro-batch."""
    offsets: Ints
    """[M + 1] Bounds of the micro-batches in ``order``."""
    slot: Ints | None = None
    """[M] Slot of each; ``None``: as early as the order allows."""


def layout_of(batch_of: Ints, first_rank: Ints, cp_degree: Ints, slot: Ints | None = None) -> Layout:
    """The layout in which sample s stands in micro-batch ``batch_of[s]``."""
    order, offsets = group_by(batch_of, first_rank.size)
    return Layout(first_rank=first_rank, cp_degree=cp_degree, order=order, offsets=offsets, slot=slot)


def slowness(problem: Problem) -> Ints:
    """[R] parts of `SPEED_UNIT` that one nominal nanosecond takes, rounded up."""
    speed = problem.topology.speed
    if speed is None:
        return np.full(problem.ranks, SPEED_UNIT, np.int64)
    return np.ceil(SPEED_UNIT / speed).astype(np.int64)


def batch_costs_ns(problem: Problem, layout: Layout) -> Ints:
    """[M] nanoseconds of each micro-batch on each of its ranks, at nominal speed."""
    cost: Ints = np.zeros(layout.first_rank.size, np.int64)
    for degree in np.unique(layout.cp_degree).tolist():
        mine = layout.cp_degree == degree
        total = sums.batch_sums(problem.work_ns(degree), layout.order, layout.offsets)
        cost[mine] = total[mine] + problem.fixed_ns(degree)
    return cost


def batch_tokens(problem: Problem, layout: Layout) -> Ints:
    """[M] tokens of each micro-batch, alignment padding included."""
    tokens: Ints = np.zeros(layout.first_rank.size, np.int64)
    for degree in np.unique(layout.cp_degree).tolist():
        mine = layout.cp_degree == degree
        tokens[mine] = sums.batch_sums(padded(problem.num_tokens, degree), layout.order, layout.offsets)[mine]
    return tokens


def step_times_ns(
    problem: Problem, layout: Layout, cost: Ints, slot: Ints, num_slots: int
) -> tuple[Ints, int]:
    """([R] time that each rank computes, time of the step) in nanoseconds."""
    pace = slowness(problem)
    later_stages = problem.topology.pipeline_stages - 1
    total, largest = sums.rank_sums(layout.first_rank, layout.cp_degree, cost, pace, SPEED_UNIT)
    rank_time: Ints = total + later_stages * largest
    if num_slots == 0:
        return rank_time, 0
    if problem.sync == "step":
        by_slot = np.argsort(slot, kind="stable")
        ends = finish_times(layout.first_rank, layout.cp_degree, by_slot, cost, pace, SPEED_UNIT)
        return rank_time, int((ends + later_stages * largest).max())
    maxima = sums.slot_maxima(
        layout.first_rank, layout.cp_degree, slot, cost, pace, SPEED_UNIT, num_slots, problem.fixed_ns(1)
    )
    return rank_time, int(maxima.sum() + later_stages * maxima.max())


def slots_of(problem: Problem, layout: Layout) -> tuple[Ints, int]:
    """([M] slot of each micro-batch, number of slots that every rank counts)."""
    slot = layout.slot
    if slot is None:
        slot = sums.next_slots(layout.first_rank, layout.cp_degree, problem.ranks)
    used = int(slot.max(initial=-1)) + 1
    return slot, used if problem.micro_batches is None else max(used, problem.micro_batches)


def objective_ns(problem: Problem, layout: Layout) -> int:
    """Nanoseconds of the step under this layout."""
    slot, num_slots = slots_of(problem, layout)
    return step_times_ns(problem, layout, batch_costs_ns(problem, layout), slot, num_slots)[1]


def seconds(nanoseconds: Ints) -> NDArray[np.float64]:
    """The same times as float64 seconds."""
    times: NDArray[np.float64] = nanoseconds * 1e-9
    return times


def make_plan(problem: Problem, layout: Layout, *, lower_bound_ns: int, policy: str) -> StepPlan:
    """The plan of a layout: slots, predicted times and columns in execution order."""
    slot, num_slots = slots_of(problem, layout)
    cost = batch_costs_ns(problem, layout)
    rank_time, step_time = step_times_ns(problem, layout, cost, slot, num_slots)
    by_slot = np.lexsort((layout.first_rank, slot))
    sizes = np.diff(layout.offsets)[by_slot]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    take = np.repeat(layout.offsets[:-1][by_slot] - offsets[:-1], sizes) + np.arange(len(problem))
    batches = MicroBatches(
        first_rank=layout.first_rank[by_slot].astype(np.int32),
        cp_degree=layout.cp_degree[by_slot].astype(np.int32),
        slot=slot[by_slot].astype(np.int32),
        tokens=batch_tokens(problem, layout)[by_slot],
        cost_s=seconds(cost[by_slot]),
        order=problem.rows[layout.order[take]],
        offsets=offsets,
    )
    return StepPlan(
        micro_batches=batches,
        ranks=problem.ranks,
        sync=problem.sync,
        num_slots=num_slots,
        rank_time_s=seconds(rank_time),
        time_s=step_time * 1e-9,
        lower_bound_s=min(lower_bound_ns, step_time) * 1e-9,
        policy=policy,
    )
