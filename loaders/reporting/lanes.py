"""What each rank does in one step, cut down to what a picture can show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.plan import StepPlan
from balancer.views.timeline import timeline
from loaders.reporting.running import Ints

ALL_RANKS, SOME_RANKS = 64, 32
"""Up to 64 ranks are drawn all, of more ranks 32."""
_MOST_POINTS = 256
_MOST_SPANS = 1200

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lanes:
    """One step's timeline. Axes: N = spans, V = ranks shown, Q = points of the curve."""

    name: str
    policy: str
    time_s: float
    """Predicted step time."""
    idle: float
    """Share of the ranks' time in which they wait."""
    ranks: int
    shown: Ints
    """[V] Ranks that are drawn: all in their order, or some of many, from the slowest to the fastest."""
    lane: Ints
    """[N] Which of the ranks shown, from the top."""
    start_s: Floats
    """[N] Of many, neighbours of one degree are joined."""
    end_s: Floats
    """[N]"""
    cp_degree: Ints
    """[N]"""
    shown_busy_s: Floats
    """[V] Seconds that each rank shown computes."""
    shown_micro_batches: Ints
    """[V]"""
    busy_curve_s: Floats
    """[Q] Seconds that ranks compute, all ranks, falling; at most 256 of them, evenly taken."""


def lanes(name: str, plan: StepPlan) -> Lanes:
    """Cut a plan's timeline to ranks evenly taken between its slowest and its fastest."""
    spans = timeline(plan)
    shown = _shown(plan)
    lane_of = np.full(plan.ranks, -1, np.int64)
    lane_of[shown] = np.arange(shown.size)
    mine = np.flatnonzero(lane_of[spans.rank] >= 0)
    order = mine[np.lexsort((spans.start_s[mine], lane_of[spans.rank[mine]]))]
    degree = plan.micro_batches.cp_degree[spans.micro_batch[order]].astype(np.int64)
    lane, start, end = lane_of[spans.rank[order]], spans.start_s[order], spans.end_s[order]
    heads = _heads(lane, degree, start, end) if lane.size > _MOST_SPANS else np.arange(lane.size)
    tails = np.append(heads[1:], lane.size) - 1 if lane.size else heads
    falling = np.sort(plan.rank_time_s)[::-1]
    points = np.unique(np.linspace(0, plan.ranks - 1, min(plan.ranks, _MOST_POINTS)).astype(np.int64))
    busy = float(plan.rank_time_s.sum()) / (plan.time_s * plan.ranks) if plan.time_s > 0 else 1.0
    return Lanes(
        name=name,
        policy=plan.policy,
        time_s=plan.time_s,
        idle=max(1.0 - busy, 0.0),
        ranks=plan.ranks,
        shown=shown,
        lane=lane[heads],
        start_s=start[heads],
        end_s=end[tails],
        cp_degree=degree[heads],
        shown_busy_s=plan.rank_time_s[shown],
        shown_micro_batches=np.bincount(lane, minlength=shown.size).astype(np.int64),
        busy_curve_s=falling[points],
    )


def _shown(plan: StepPlan) -> Ints:
    """[V] All ranks, or some of many by how long they compute."""
    if plan.ranks <= ALL_RANKS:
        return np.arange(plan.ranks)
    by_time = np.argsort(-plan.rank_time_s, kind="stable")
    return by_time[np.linspace(0, plan.ranks - 1, SOME_RANKS).astype(np.int64)]


def _heads(lane: Ints, degree: Ints, start: Floats, end: Floats) -> Ints:
    """First spans of runs that follow each other without a gap, of one rank at one degree."""
    if not lane.size:
        return np.zeros(0, np.int64)
    joined = (
        (lane[1:] == lane[:-1])
        & (degree[1:] == degree[:-1])
        & (start[1:] <= end[:-1] + 1e-9 * max(float(end.max()), 1e-9))
    )
    return np.flatnonzero(np.concatenate([[True], ~joined]))


@dataclass(frozen=True, kw_only=True, slots=True)
class DegreeUse:
    """What ran at one CP degree, over several steps."""

    cp_degree: int
    samples: int
    tokens: int
    micro_batches: int
    rank_s: float
    """Seconds times ranks."""


def degree_use(plans: list[tuple[StepPlan, Ints]]) -> tuple[DegreeUse, ...]:
    """Sum over plans and the lengths of their steps."""
    found: dict[int, list[float]] = {}
    for plan, lengths in plans:
        batches = plan.micro_batches
        owner = np.repeat(np.arange(len(batches)), np.diff(batches.offsets))
        degree_of_sample = batches.cp_degree[owner]
        tokens = lengths[batches.order]
        for degree in np.unique(batches.cp_degree).tolist():
            mine, samples = batches.cp_degree == degree, degree_of_sample == degree
            sums = found.setdefault(degree, [0, 0, 0, 0.0])
            sums[0] += int(np.count_nonzero(samples))
            sums[1] += int(tokens[samples].sum())
            sums[2] += int(np.count_nonzero(mine))
            sums[3] += float(batches.cost_s[mine].sum()) * degree
    return tuple(
        DegreeUse(
            cp_degree=int(degree),
            samples=int(samples),
            tokens=int(tokens),
            micro_batches=int(batches),
            rank_s=rank_s,
        )
        for degree, (samples, tokens, batches, rank_s) in sorted(found.items())
    )
