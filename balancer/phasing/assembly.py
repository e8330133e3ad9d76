"""From a placement of samples to a plan of one phase, with its predicted times."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from balancer.costs.model import CostModel
from balancer.plan import MicroBatches, StepPlan
from balancer.topology import Topology
from balancer.views.timeline import timeline

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Placement:
    """Which micro-batch each sample stands in. Axes: M = micro-batches, S = samples of the step."""

    first_rank: Ints
    """[M] First rank of the group."""
    cp_degree: Ints
    """[M] Ranks of the group."""
    slot: Ints
    """[M] Place in the ranks' lists."""
    batch_of: Ints
    """[S] Index into the micro-batches."""


def placement_of(plan: StepPlan) -> Placement:
    """Where a plan puts its samples; it must hold all rows of the step."""
    batches = plan.micro_batches
    batch_of: Ints = np.empty(batches.order.size, np.int64)
    batch_of[batches.order] = np.repeat(np.arange(len(batches)), np.diff(batches.offsets))
    return Placement(
        first_rank=batches.first_rank.astype(np.int64),
        cp_degree=batches.cp_degree.astype(np.int64),
        slot=batches.slot.astype(np.int64),
        batch_of=batch_of,
    )


def work_ns(units: Ints, cost: CostModel, degree_of: Ints) -> Ints:
    """[S] nanoseconds of each sample on each rank of its group. degree_of: [S]."""
    work: Ints = np.zeros(units.size, np.int64)
    for degree in np.unique(degree_of).tolist():
        mine = degree_of == degree
        work[mine] = cost.nanoseconds(units[mine], degree)
    return work


def assemble(
    placement: Placement,
    units: Ints,
    cost: CostModel,
    *,
    topology: Topology,
    sync: str,
    num_slots: int,
    lower_bound_s: float,
    policy: str,
) -> StepPlan:
    """The plan of one phase under ``placement``, without the samples that have no units.

    units: [S] tokens or patches of each sample of the step.
    """
    present = np.flatnonzero(units > 0)
    degree_of = placement.cp_degree[placement.batch_of]
    work = work_ns(units[present], cost, degree_of[present])
    # Micro-batches in execution order, samples in table order inside each.
    by_slot = np.lexsort((placement.first_rank, placement.slot))
    place_of = np.empty_like(by_slot)
    place_of[by_slot] = np.arange(by_slot.size)
    place = place_of[placement.batch_of[present]]
    size = np.bincount(place, minlength=by_slot.size)
    kept = by_slot[size > 0]
    cost_ns: Ints = np.zeros(by_slot.size, np.int64)
    np.add.at(cost_ns, place, work)
    aligned: Ints = np.zeros(by_slot.size, np.int64)
    np.add.at(aligned, place, with_alignment(units[present], degree_of[present]))
    degree = placement.cp_degree[kept]
    fixed_ns = np.array([cost.fixed_nanoseconds(int(d)) for d in degree], dtype=np.int64)
    batches = MicroBatches(
        first_rank=placement.first_rank[kept].astype(np.int32),
        cp_degree=degree.astype(np.int32),
        slot=placement.slot[kept].astype(np.int32),
        tokens=aligned[size > 0],
        cost_s=(cost_ns[size > 0] + fixed_ns).astype(np.float64) * 1e-9,
        order=present[np.argsort(place, kind="stable")],
        offsets=np.concatenate([[0], np.cumsum(size[size > 0])]).astype(np.int64),
    )
    plan = StepPlan(
        micro_batches=batches,
        ranks=topology.ranks,
        sync=sync,
        num_slots=num_slots,
        rank_time_s=_rank_times(batches, topology),
        time_s=0.0,
        lower_bound_s=lower_bound_s,
        policy=policy,
    )
    time_s = float(timeline(plan).end_s.max(initial=0.0))
    return replace(plan, time_s=time_s, lower_bound_s=min(lower_bound_s, time_s))


def in_execution_order(batches: MicroBatches) -> MicroBatches:
    """The same micro-batches by slot, then by rank."""
    index = np.lexsort((batches.first_rank, batches.slot))
    sizes = np.diff(batches.offsets)[index]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    take = np.repeat(batches.offsets[:-1][index] - offsets[:-1], sizes) + np.arange(batches.order.size)
    return MicroBatches(
        first_rank=batches.first_rank[index],
        cp_degree=batches.cp_degree[index],
        slot=batches.slot[index],
        tokens=batches.tokens[index],
        cost_s=batches.cost_s[index],
        order=batches.order[take],
        offsets=offsets,
    )


def with_alignment(units: Ints, degree_of: Ints) -> Ints:
    """[S] units with the padding that their groups need. degree_of: [S]."""
    pieces = np.where(degree_of > 1, 2 * degree_of, 1)
    aligned: Ints = -(-units // pieces) * pieces
    return aligned


def _rank_times(batches: MicroBatches, topology: Topology) -> NDArray[np.float64]:
    """[R] seconds that each rank computes, at its own speed."""
    nanoseconds = np.zeros(topology.ranks + 1, np.int64)
    cost_ns = np.round(batches.cost_s * 1e9).astype(np.int64)
    np.add.at(nanoseconds, batches.first_rank, cost_ns)
    np.subtract.at(nanoseconds, batches.first_rank + batches.cp_degree, cost_ns)
    seconds: NDArray[np.float64] = np.cumsum(nanoseconds)[:-1].astype(np.float64) * 1e-9
    return seconds if topology.speed is None else seconds / topology.speed
