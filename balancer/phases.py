"""Steps whose cost is a vector: encoders of images or sound beside the language model.

    plan = plan_phases(table, topology=topology, max_tokens=16384, cost=language_cost,
                       phases={"vision": Phase(cost=vision_cost, bytes_per_unit=8192)})

A sample's tokens and its patches may be worked on by the same rank (``joint``), or each phase is divided on
its own and encoder outputs travel (``separate``). Both are planned, and the one predicted to be faster is
taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from balancer.costs.checks import check_coefficient, check_lengths
from balancer.costs.model import CostModel
from balancer.phasing.assembly import Ints, Placement, assemble, placement_of, work_ns
from balancer.phasing.exchange import Exchange, Links, exchange_between, near_the_readers
from balancer.phasing.joint import joint_placements
from balancer.plan import StepPlan
from balancer.planner import plan_step
from balancer.topology import Topology
from packing.table import SampleTable

__all__ = ["Exchange", "Links", "Phase", "PhasePlan", "plan_phases"]

MODES = ("auto", "joint", "separate")
MEETINGS = ("phase", "step")


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """An encoder: its work is counted in units of `SampleTable.phases`, patches or frames."""

    cost: CostModel
    """Seconds by units instead of tokens."""
    bytes_per_unit: float | None = None
    """Bytes of output that the language model reads for each unit; ``None``: outputs do not travel."""
    max_units: int | None = None
    """Units that one rank can hold in one micro-batch; ``None``: any number."""
    cp_degrees: tuple[int, ...] = (1,)
    """Ranks that may share one sample's units when the encoder is divided on its own."""

    def __post_init__(self) -> None:
        if self.bytes_per_unit is not None:
            check_coefficient("Phase.bytes_per_unit", self.bytes_per_unit)
        if self.max_units is not None and self.max_units < 1:
            raise ValueError(f"Phase.max_units must be at least 1, got {self.max_units!r}.")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PhasePlan:
    """Who encodes and who reads what. All plans number samples by their row in the step's table."""

    mode: str
    """``"joint"``: samples are encoded where they are read. ``"separate"``: outputs travel."""
    language: StepPlan
    encoders: Mapping[str, StepPlan]
    """Plan of each encoder; it holds the samples that have units of this kind."""
    exchanges: Mapping[str, Exchange]
    """What travels from each encoder; empty where it is joint."""
    time_s: float
    """Predicted step time."""
    lower_bound_s: float
    """Proven: no plan is faster, joint or separate."""
    alternatives: Mapping[str, float]
    """Predicted step time of each mode that was planned."""

    @property
    def gap(self) -> float:
        """Predicted step time / proven lower bound - 1; 0.0 for an empty step."""
        return self.time_s / self.lower_bound_s - 1.0 if self.lower_bound_s > 0 else 0.0

    @property
    def imbalance(self) -> Mapping[str, float]:
        """Slowest rank's predicted time / mean, of each phase on its own."""
        return {
            "language": self.language.imbalance,
            **{name: plan.imbalance for name, plan in self.encoders.items()},
        }

    def digest(self) -> int:
        """64 bits that two equal plans share."""
        digest = self.language.digest()
        for name in sorted(self.encoders):
            digest = (digest * 0x9E3779B97F4A7C15 + self.encoders[name].digest()) % 2**64
        return digest


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Step:
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


def plan_phases(
    table: SampleTable,
    *,
    topology: Topology,
    max_tokens: int,
    cost: CostModel,
    phases: Mapping[str, Phase | CostModel],
    mode: str = "auto",
    meet: str = "phase",
    cp_degrees: Sequence[int] = (1,),
    sync: str = "step",
    links: Links | None = None,
    seed: int = 0,
) -> PhasePlan:
    """Divide a step in which samples have units of several phases.

    Args:
        table: the step's samples; ``table.phases`` has a column for each phase.
        topology: ranks, nodes and speeds.
        max_tokens: tokens that one rank can hold in one micro-batch of the language model.
        cost: the language model's.
        phases: each encoder, or just its cost where outputs cannot travel.
        mode: ``"joint"``, ``"separate"`` or ``"auto"``, whichever is predicted to be faster. A joint plan
            divides a sample's units over the ranks that share its tokens.
        meet: when a joint plan's ranks wait for each other under ``sync="step"``: ``"phase"``: after every
            phase, so the sum of each phase's slowest rank counts; ``"step"``: only at its end.
        cp_degrees: ranks that may share a sample's tokens.
        sync: as for `plan_step`. With ``"micro_batch"`` ranks meet in every slot of every phase.
        links: rates at which outputs travel.
        seed: as for `plan_step`.

    Raises:
        ValueError: arguments out of range, phases without a column or the other way round, or a mode that
            these phases cannot be planned in.
    """
    checked = _check(table, topology, phases, mode, meet)
    step = _prepare(
        table,
        topology=topology,
        max_tokens=max_tokens,
        cost=cost,
        phases=checked,
        meet=meet,
        cp_degrees=tuple(cp_degrees),
        sync=sync,
        links=links or Links(),
        seed=seed,
    )
    plans = []
    if mode != "separate" and topology.pipeline_stages == 1:
        plans += _plan_joint(step)
    if mode != "joint" and all(phase.bytes_per_unit is not None for phase in checked.values()):
        plans.append(_plan_separate(step))
    if not plans:
        raise ValueError(
            f"mode={mode!r} has no plan: a joint plan needs pipeline_stages=1 and room for the units of each "
            "micro-batch (max_units); a separate one needs bytes_per_unit of every phase."
        )
    best = min(plans, key=lambda plan: plan.time_s)
    fastest = {kind: min(p.time_s for p in plans if p.mode == kind) for kind in {p.mode for p in plans}}
    return PhasePlan(
        mode=best.mode,
        language=best.language,
        encoders=best.encoders,
        exchanges=best.exchanges,
        time_s=best.time_s,
        lower_bound_s=min(best.lower_bound_s, best.time_s),
        alternatives=MappingProxyType(dict(sorted(fastest.items()))),
    )


def _check(
    table: SampleTable, topology: Topology, phases: Mapping[str, Phase | CostModel], mode: str, meet: str
) -> dict[str, Phase]:
    for name, value, allowed in (("mode", mode, MODES), ("meet", meet, MEETINGS)):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {allowed}, got {value!r}.")
    if set(phases) != set(table.phases):
        raise ValueError(
            f"phases and the table's columns must be the same: phases has {sorted(phases)}, the table has "
            f"{sorted(table.phases)}. Give every column a cost, or take it out of the table."
        )
    checked = {
        name: phase if isinstance(phase, Phase) else Phase(cost=phase) for name, phase in phases.items()
    }
    for name in checked:
        if check_lengths(table.phases[name]).size != len(table):
            raise ValueError(
                f"the table has {len(table)} samples and {table.phases[name].size} values of {name!r}."
            )
    return checked


def _prepare(
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
) -> _Step:
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
    )
    encoders, bounds = {}, {"language": language.lower_bound_s}
    for name, phase in phases.items():
        encoders[name] = _plan_encoder(units[name], phase, phase.cp_degrees, topology, sync, seed)
        every_degree = tuple(sorted({*phase.cp_degrees, *cp_degrees}))
        bounds[name] = encoders[name].lower_bound_s
        if every_degree != phase.cp_degrees:
            # A joint plan may spread units over any group that reads the tokens.
            bounds[name] = _plan_encoder(units[name], phase, every_degree, topology, sync, seed).lower_bound_s
    return _Step(
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


def _plan_joint(step: _Step) -> list[PhasePlan]:
    """Plans with one assignment for all phases, of which any may be the fastest."""
    start = placement_of(step.language)
    degree_of = start.cp_degree[start.batch_of]
    work = [work_ns(step.num_tokens, step.cost, degree_of)]
    for name, phase in step.phases.items():
        units = step.units[name]
        nanoseconds: Ints = np.zeros(units.size, np.int64)
        present = units > 0
        nanoseconds[present] = work_ns(units[present], phase.cost, degree_of[present])
        work.append(nanoseconds)
    if step.sync == "step" and step.meet == "step":
        work = [np.sum(work, axis=0)]
    placements = joint_placements(
        start,
        step.num_tokens,
        work,
        topology=step.topology,
        max_tokens=step.max_tokens,
        sync=step.sync,
        num_slots=step.language.num_slots,
    )
    plans = [_assembled(step, placement) for placement in placements]
    return [plan for plan in plans if plan is not None]


def _assembled(step: _Step, placement: Placement) -> PhasePlan | None:
    """The joint plan of a placement; ``None`` where some micro-batch has more units than fit."""
    num_slots = int(placement.slot.max(initial=-1)) + 1

    def assembled(name: str, units: Ints, cost: CostModel) -> StepPlan:
        return assemble(
            placement,
            units,
            cost,
            topology=step.topology,
            sync=step.sync,
            num_slots=num_slots,
            lower_bound_s=step.bounds_s[name],
            policy="balanced",
        )

    language = assembled("language", step.num_tokens, step.cost)
    encoders = {}
    for name, phase in step.phases.items():
        plan = assembled(name, step.units[name], phase.cost)
        batches = plan.micro_batches
        if phase.max_units is not None and np.any(batches.tokens > phase.max_units * batches.cp_degree):
            return None
        encoders[name] = plan
    each = [language, *encoders.values()]
    if step.sync == "step" and step.meet == "step":
        time_s = float(np.sum([plan.rank_time_s for plan in each], axis=0).max())
    else:
        time_s = sum(plan.time_s for plan in each)
    return PhasePlan(
        mode="joint",
        language=language,
        encoders=encoders,
        exchanges={},
        time_s=time_s,
        lower_bound_s=_bound_s(step),
        alternatives={},
    )


def _plan_separate(step: _Step) -> PhasePlan:
    """Each phase divided on its own, encoders first, their outputs sent to where they are read."""
    encoders, exchanges = {}, {}
    for name, phase in step.phases.items():
        units = step.units[name]
        encoders[name] = near_the_readers(step.encoders[name], step.language, units, topology=step.topology)
        exchanges[name] = exchange_between(
            encoders[name],
            step.language,
            units,
            phase.bytes_per_unit or 0.0,
            topology=step.topology,
            links=step.links,
        )
    time_s = step.language.time_s
    time_s += sum(plan.time_s for plan in encoders.values())
    time_s += sum(exchange.time_s for exchange in exchanges.values())
    return PhasePlan(
        mode="separate",
        language=step.language,
        encoders=encoders,
        exchanges=exchanges,
        time_s=time_s,
        lower_bound_s=_bound_s(step),
        alternatives={},
    )


def _bound_s(step: _Step) -> float:
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
