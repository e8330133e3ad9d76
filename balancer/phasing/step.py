"""Each phase planned on its own: where joint plans start, what separate ones consist of, and the bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from balancer.costs.checks import check_lengths
from balancer.costs.model import CostModel
from balancer.phasing.assembly import Ints
from balancer.phasing.exchange import Links
from balancer.phasing.parts import Phase
from balancer.plan import StepPlan
from balancer.planner import plan_step
from balancer.topology import Topology
from packing.table import SampleTable


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PhasedStep:
    """Everything that both modes are planned from."""

    num_tokens: Ints
    units: Mapping[str, Ints]
    cost: CostModel
    phases: Mapping[str, Phase]
    topology: Topology
    max_tokens: int
    sync: str
    meet: str
    cp_degrees: tuple[int, ...]
    seed: int
    links: Links
    language: StepPlan
    encoders: Mapping[str, StepPlan]
    bounds_s: Mapping[str, float]
    max_samples: int | None = None


def prepare(
    table: SampleTable,
    *,
    topology: Topology,
    max_tokens: int,
    cost: CostModel,
    phases: Mapping[str, Phase],
    meet: str,
    cp_degrees: tuple[int, ...],
    sync: str,
    links: Links,
    seed: int,
    max_samples: int | None = None,
) -> PhasedStep:
    """Plan each phase on its own: the start of joint plans, the parts of separate ones, and the bound."""
    cost = cost.for_topology(topology)
    phases = {
        name: Phase(
            cost=phase.cost.for_topology(topology),
            bytes_per_unit=phase.bytes_per_unit,
            max_units=phase.max_units,
            cp_degrees=phase.cp_degrees,
        )
        for name, phase in phases.items()
    }
    units = {name: check_lengths(table.phases[name]) for name in phases}
    language = plan_step(
        table,
        topology=topology,
        max_tokens=max_tokens,
        cost=cost,
        cp_degrees=cp_degrees,
        sync=sync,
        seed=seed,
        max_samples=max_samples,
    )
    encoders, bounds = {}, {"language": language.lower_bound_s}
    for name, phase in phases.items():
        encoders[name] = _plan_encoder(units[name], phase, phase.cp_degrees, topology, sync, seed)
        every_degree = tuple(sorted({*phase.cp_degrees, *cp_degrees}))
        bounds[name] = encoders[name].lower_bound_s
        if every_degree != phase.cp_degrees:
            # A joint plan may spread units over any group that reads the tokens.
            bounds[name] = _plan_encoder(units[name], phase, every_degree, topology, sync, seed).lower_bound_s
    return PhasedStep(
        num_tokens=check_lengths(table.num_tokens),
        units=units,
        cost=cost,
        phases=phases,
        topology=topology,
        max_tokens=max_tokens,
        sync=sync,
        meet=meet,
        cp_degrees=cp_degrees,
        seed=seed,
        links=links,
        language=language,
        encoders=encoders,
        bounds_s=bounds,
        max_samples=max_samples,
    )


def _plan_encoder(
    units: Ints, phase: Phase, degrees: tuple[int, ...], topology: Topology, sync: str, seed: int
) -> StepPlan:
    """The plan of one encoder over the samples that have units, numbered by their row in the table."""
    present = np.flatnonzero(units > 0)
    limit = phase.max_units or int(units.sum()) + 2
    # Few micro-batches pay fewer fixed costs, many small ones divide more evenly: both are tried.
    quarter = max(int(units.max(initial=0)) + 2, int(units.sum()) // (4 * topology.ranks))
    plans = [
        plan_step(
            units[present],
            topology=Topology(topology.ranks, topology.ranks_per_node, topology.speed),
            max_tokens=capacity,
            cost=phase.cost,
            cp_degrees=degrees,
            sync=sync,
            seed=seed,
        )
        for capacity in (limit, min(limit, quarter))
    ]
    fastest = min(plans, key=lambda plan: plan.time_s)
    return _renumbered(replace(fastest, lower_bound_s=plans[0].lower_bound_s), present)


def _renumbered(plan: StepPlan, rows: Ints) -> StepPlan:
    return replace(plan, micro_batches=replace(plan.micro_batches, order=rows[plan.micro_batches.order]))


def bound_s(step: PhasedStep) -> float:
    """What no plan of either mode can beat.

    Where ranks meet after every phase, each phase takes at least its own bound. Where they meet once, a rank
    that waits in one phase may work in another: then the largest phase, and the mean of all work, remain.
    """
    if step.sync == "micro_batch" or step.meet == "phase":
        return sum(step.bounds_s.values())
    speed = step.topology.ranks if step.topology.speed is None else float(step.topology.speed.sum())
    total_ns = int(step.cost.nanoseconds(step.num_tokens).sum())
    for name, phase in step.phases.items():
        units = step.units[name]
        total_ns += int(phase.cost.nanoseconds(units[units > 0]).sum())
    return max(total_ns * 1e-9 / speed, *step.bounds_s.values())
