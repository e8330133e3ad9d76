"""A division of the samples, and the plan it makes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer._kernels import sums
from balancer._kernels.order import group_by
from balancer._kernels.waves import finish_times
from balancer.plan import MicroBatches, StepPlan
from balancer.planning.longest import LONGEST_NS, too_long
from balancer.planning.problem import Ints, Problem

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
    to_longest: bool = False
    """Whether every sample is padded to the longest of its micro-batch."""


def layout_of(
    batch_of: Ints, first_rank: Ints, cp_degree: Ints, slot: Ints | None = None, to_longest: bool = False
) -> Layout:
    """The layout in which sample s stands in micro-batch ``batch_of[s]``."""
    order, offsets = group_by(batch_of, first_rank.size)
    return Layout(
        first_rank=first_rank,
        cp_degree=cp_degree,
        order=order,
        offsets=offsets,
        slot=slot,
        to_longest=to_longest,
    )


def empty_layout() -> Layout:
    """The layout of a step without samples."""
    none = np.zeros(0, np.int64)
    return Layout(first_rank=none, cp_degree=none, order=none, offsets=np.zeros(1, np.int64))


def slowness(problem: Problem) -> Ints:
    """[R] parts of `SPEED_UNIT` that one nominal nanosecond takes, rounded up."""
    if "slowness" not in problem._cache:
        speed = problem.topology.speed
        equal = np.full(problem.ranks, SPEED_UNIT, np.int64)
        problem._cache["slowness"] = equal if speed is None else np.ceil(SPEED_UNIT / speed).astype(np.int64)
    slow: Ints = problem._cache["slowness"]
    return slow


def batch_columns(problem: Problem, layout: Layout) -> tuple[Ints, Ints]:
    """([M] nanoseconds on each rank at nominal speed, [M] tokens with padding) of the micro-batches."""
    if layout.first_rank.size == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    degrees = np.flatnonzero(np.bincount(layout.cp_degree))
    work = _work_in_order(problem, layout, degrees)
    _check_sums(layout, work)
    cost, tokens = sums.batch_sums(
        work, layout.order, layout.offsets, layout.cp_degree, problem.num_tokens, layout.to_longest
    )
    fixed = np.array([problem.fixed_ns(degree) for degree in degrees.tolist()], np.int64)
    cost += fixed[np.searchsorted(degrees, layout.cp_degree)]
    return cost, tokens


def _work_in_order(problem: Problem, layout: Layout, degrees: Ints) -> Ints:
    """[S] nanoseconds of each sample at the degree of its micro-batch, in layout order."""
    if degrees.size == 1:
        alone: Ints = problem.work_ns(int(degrees[0]))[layout.order]
        return alone
    level = np.searchsorted(degrees, layout.cp_degree)
    positions, bounds = sums.by_level(layout.offsets, level, degrees.size)
    work = np.empty(layout.order.size, np.int64)
    for degree, lo, hi in zip(degrees.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        here = positions[lo:hi]
        work[here] = problem.work_ns_of((degree,), layout.order[here])[0]
    return work


def _check_sums(layout: Layout, work: Ints) -> None:
    """That no micro-batch's work runs over 64 bits; summed only where the largest ones alone might."""
    counts = np.diff(layout.offsets)
    if float(work.max()) * int(counts.max()) < LONGEST_NS:
        return
    total = np.add.reduceat(work.astype(np.float64), layout.offsets[:-1])
    if layout.to_longest:
        total = np.maximum.reduceat(work, layout.offsets[:-1]).astype(np.float64) * counts
    if total.max() >= LONGEST_NS:
        raise too_long()


def step_times_ns(
    problem: Problem, layout: Layout, cost: Ints, slot: Ints, num_slots: int
) -> tuple[Ints, int]:
    """([R] time that each rank computes, time of the step) in nanoseconds."""
    pace = slowness(problem)
    later_stages = problem.topology.pipeline_stages - 1
    _check_times(layout, cost, slot, pace, num_slots, problem.fixed_ns(1), later_stages)
    total, largest = sums.rank_sums(layout.first_rank, layout.cp_degree, cost, pace, SPEED_UNIT)
    rank_time: Ints = total + later_stages * largest
    if num_slots == 0:
        return rank_time, 0
    if problem.sync == "step":
        # Without slots of its own a layout is in the order in which every rank runs its micro-batches.
        by_slot = np.arange(slot.size)
        if layout.slot is not None:
            by_slot, _ = group_by(slot, int(slot.max(initial=-1)) + 1)
        ends = finish_times(layout.first_rank, layout.cp_degree, by_slot, cost, pace, SPEED_UNIT)
        return rank_time, int((ends + later_stages * largest).max())
    maxima = sums.slot_maxima(
        layout.first_rank, layout.cp_degree, slot, cost, pace, SPEED_UNIT, num_slots, problem.fixed_ns(1)
    )
    return rank_time, int(maxima.sum() + later_stages * maxima.max())


def _check_times(
    layout: Layout, cost: Ints, slot: Ints, pace: Ints, num_slots: int, fixed_ns: int, later_stages: int
) -> None:
    """That times fit 64 bits: no rank, and no step, takes longer than its slots one after another."""
    rounds = num_slots + later_stages
    if float(cost.max(initial=fixed_ns)) * float(pace.max()) / SPEED_UNIT * rounds < LONGEST_NS:
        return
    slowest = np.full(num_slots, float(fixed_ns) * float(pace.max()))
    for first, degree, at, nominal in zip(layout.first_rank, layout.cp_degree, slot, cost, strict=True):
        slowest[at] = max(slowest[at], float(nominal) * float(pace[first : first + degree].max()))
    if (slowest.sum() + later_stages * slowest.max(initial=0.0)) / SPEED_UNIT >= LONGEST_NS:
        raise too_long()


def slots_of(problem: Problem, layout: Layout) -> tuple[Ints, int]:
    """([M] slot of each micro-batch, number of slots that every rank counts)."""
    slot = layout.slot
    if slot is None:
        slot = sums.next_slots(layout.first_rank, layout.cp_degree, problem.ranks)
    return slot, slots_counted(problem, slot)


def slots_counted(problem: Problem, slot: Ints) -> int:
    """Number of slots that every rank counts."""
    return rounded_slots(problem, int(slot.max(initial=-1)) + 1)


def rounded_slots(problem: Problem, used: int) -> int:
    """The same where ``used`` slots hold micro-batches."""
    if problem.micro_batches is not None:
        return max(used, problem.micro_batches)
    return -(-used // problem.slots_multiple_of) * problem.slots_multiple_of


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Timed:
    """What a layout takes. Axes: M = micro-batches, R = ranks."""

    slot: Ints
    """[M]"""
    num_slots: int
    cost: Ints
    """[M] nanoseconds on each rank at nominal speed."""
    tokens: Ints
    """[M] tokens with padding."""
    rank_time: Ints
    """[R] nanoseconds that each rank computes."""
    step_time: int
    """Nanoseconds of the step."""


def timed(problem: Problem, layout: Layout) -> Timed:
    """The times of a layout; those of the last one are kept, as a plan is made of what was compared last."""
    last: tuple[Layout, Timed] | None = problem._cache.get("timed")
    if last is not None and last[0] is layout:
        return last[1]
    slot, num_slots = slots_of(problem, layout)
    cost, tokens = batch_columns(problem, layout)
    rank_time, step_time = step_times_ns(problem, layout, cost, slot, num_slots)
    found = Timed(
        slot=slot, num_slots=num_slots, cost=cost, tokens=tokens, rank_time=rank_time, step_time=step_time
    )
    problem._cache["timed"] = layout, found
    return found


def objective_ns(problem: Problem, layout: Layout) -> int:
    """Nanoseconds of the step under this layout."""
    return timed(problem, layout).step_time


def exact_sum(values: NDArray[np.float64]) -> float:
    """Sum of floats, rounded once: numpy's order of adding, and so the last bit, may follow the processor."""
    return math.fsum(values.tolist())


def seconds(nanoseconds: Ints) -> NDArray[np.float64]:
    """The same times as float64 seconds."""
    times: NDArray[np.float64] = nanoseconds.astype(np.float64) * 1e-9
    return times


def make_plan(problem: Problem, layout: Layout, *, lower_bound_ns: int, policy: str) -> StepPlan:
    """The plan of a layout: slots, predicted times and columns in execution order."""
    times = timed(problem, layout)
    slot, cost = times.slot, times.cost
    by_rank, _ = group_by(layout.first_rank, problem.ranks)
    by_slot = by_rank[group_by(slot[by_rank], int(slot.max(initial=-1)) + 1)[0]]
    order, offsets = sums.reorder(problem.rows, layout.order, layout.offsets, by_slot)
    batches = MicroBatches(
        first_rank=layout.first_rank[by_slot].astype(np.int32),
        cp_degree=layout.cp_degree[by_slot].astype(np.int32),
        slot=slot[by_slot].astype(np.int32),
        tokens=times.tokens[by_slot],
        cost_s=seconds(cost[by_slot]),
        order=order,
        offsets=offsets,
    )
    return StepPlan(
        micro_batches=batches,
        ranks=problem.ranks,
        sync=problem.sync,
        num_slots=times.num_slots,
        rank_time_s=seconds(times.rank_time),
        time_s=times.step_time * 1e-9,
        lower_bound_s=min(lower_bound_ns, times.step_time) * 1e-9,
        policy=policy,
    )
