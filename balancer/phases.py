"""Steps whose cost is a vector: encoders of images or sound beside the language model.

    plan = plan_phases(table, topology=topology, max_tokens=16384, cost=language_cost,
                       phases={"vision": Phase(cost=vision_cost, bytes_per_unit=8192)})

A sample's tokens and its patches may be worked on by the same rank (``joint``), or each phase is divided on
its own and encoder outputs travel (``separate``). Both are planned, and the one predicted to be faster is
taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from balancer.costs.checks import check_lengths
from balancer.costs.model import CostModel
from balancer.phasing.exchange import Exchange, Links
from balancer.phasing.modes import plan_joint, plan_separate
from balancer.phasing.parts import Phase, PhasePlan
from balancer.phasing.step import prepare
from balancer.planning.samples import check_max_samples
from balancer.topology import Topology
from packing.table import SampleTable

__all__ = ["Exchange", "Links", "Phase", "PhasePlan", "plan_phases"]

MODES = ("auto", "joint", "separate")
MEETINGS = ("phase", "step")


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
    max_samples: int | None = None,
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
        max_samples: samples that a micro-batch of the language model may hold.

    Raises:
        ValueError: arguments out of range, phases without a column or the other way round, or a mode that
            these phases cannot be planned in.
    """
    checked = _check(table, topology, phases, mode, meet)
    step = prepare(
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
        max_samples=None if max_samples is None else check_max_samples(max_samples),
    )
    plans = []
    if mode != "separate" and topology.pipeline_stages == 1:
        plans += plan_joint(step)
    if mode != "joint" and all(phase.bytes_per_unit is not None for phase in checked.values()):
        plans.append(plan_separate(step))
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
        alternatives=dict(sorted(fastest.items())),
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
