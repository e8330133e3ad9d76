"""The two ways to plan a step with encoders."""

from __future__ import annotations

import numpy as np

from balancer.costs.model import CostModel
from balancer.phasing.assembly import Ints, Placement, assemble, placement_of, work_ns
from balancer.phasing.exchange import exchange_between, near_the_readers
from balancer.phasing.joint import joint_placements
from balancer.phasing.limits import within_limits, within_samples
from balancer.phasing.parts import PhasePlan
from balancer.phasing.step import PhasedStep, bound_s
from balancer.plan import StepPlan


def plan_joint(step: PhasedStep) -> list[PhasePlan]:
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
    limits = [
        (step.units[name], phase.max_units)
        for name, phase in step.phases.items()
        if phase.max_units is not None
    ]
    placements = [within_limits(placement, limits, sync=step.sync) for placement in placements]
    if step.max_samples is not None:
        most = step.max_samples
        placements = [within_samples(one, step.num_tokens, most, sync=step.sync) for one in placements]
    plans = [_assembled(step, placement) for placement in placements]
    return [plan for plan in plans if plan is not None]


def _assembled(step: PhasedStep, placement: Placement) -> PhasePlan | None:
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
        lower_bound_s=bound_s(step),
        alternatives={},
    )


def plan_separate(step: PhasedStep) -> PhasePlan:
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
        lower_bound_s=bound_s(step),
        alternatives={},
    )
