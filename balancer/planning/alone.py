"""One rank: it does all the work whatever the plan is, so only the number of micro-batches counts.

First fit, longest first, is at the bound nearly always, and then there is nothing to search or to compare:
512 samples take 0.15 ms instead of 0.6.
"""

from __future__ import annotations

import numpy as np

from balancer._kernels import alone as kernels
from balancer._kernels import place
from balancer.plan import MicroBatches, StepPlan
from balancer.planning.layout import Layout, rounded_slots
from balancer.planning.longest import LONGEST_NS
from balancer.planning.problem import Problem


def bound_ns(problem: Problem) -> int | None:
    """Nanoseconds of all work and of the fewest micro-batches; None where there is more than one rank.

    It is what `balancer.planning.ladder` finds: a micro-batch holds ``max_tokens`` tokens, and two samples
    above half of that never share one. Also None for pipelines, unlike speeds and 36 years of work.
    """
    found = _bound_and_fewest(problem)
    return None if found is None else found[0]


def _bound_and_fewest(problem: Problem) -> tuple[int, int] | None:
    """`bound_ns`, and the fewest micro-batches that hold all samples."""
    topology = problem.topology
    if topology.ranks > 1 or topology.pipeline_stages > 1 or topology.speed is not None:
        return None
    if "alone" not in problem._cache:
        total, exact, fewest = kernels.totals(problem.work_ns(1), problem.num_tokens, problem.max_tokens[0])
        bound = exact + problem.fixed_ns(1) * _slots(problem, fewest), fewest
        problem._cache["alone"] = bound if total < LONGEST_NS else None
    found: tuple[int, int] | None = problem._cache["alone"]
    return found


def divide(problem: Problem) -> Layout | None:
    """A plan that takes `bound_ns`, or None where first fit finds none."""
    found = _bound_and_fewest(problem)
    if found is None:
        return None
    samples = len(problem)
    order, offsets, unit = place.first_fit(
        problem.num_tokens, np.arange(samples), np.array([0, samples]), problem.max_tokens
    )
    batches = unit.size
    if problem.micro_batches is not None and batches > problem.micro_batches:
        return None
    if problem.fixed_ns(1) > 0 and _slots(problem, batches) > _slots(problem, found[1]):
        return None
    return Layout(first_rank=unit, cp_degree=unit + 1, order=order, offsets=offsets)


def make_plan(problem: Problem, layout: Layout, policy: str) -> StepPlan | None:
    """What `balancer.planning.layout.make_plan` makes of a layout, or None where it takes more than sums.

    One rank runs its micro-batches in their order, at nominal speed: a sixth of the time of 512 samples.
    """
    bound = bound_ns(problem)
    if bound is None or bound > LONGEST_NS // 2 or layout.slot is not None or layout.to_longest:
        return None
    fixed = problem.fixed_ns(1)
    first_rank, cp_degree, slot, tokens, cost_s, order, computed = kernels.columns(
        problem.rows, problem.num_tokens, problem.work_ns(1), layout.order, layout.offsets, fixed
    )
    num_slots = rounded_slots(problem, slot.size)
    dummies = num_slots - slot.size if problem.sync == "micro_batch" else 0
    time_ns = computed + dummies * fixed
    if time_ns > LONGEST_NS // 2:
        return None
    return StepPlan(
        micro_batches=MicroBatches(
            first_rank=first_rank,
            cp_degree=cp_degree,
            slot=slot,
            tokens=tokens,
            cost_s=cost_s,
            order=order,
            offsets=layout.offsets,
        ),
        ranks=1,
        sync=problem.sync,
        num_slots=num_slots,
        rank_time_s=np.array([computed * 1e-9]),
        time_s=time_ns * 1e-9,
        lower_bound_s=min(bound, time_ns) * 1e-9,
        policy=policy,
    )


def _slots(problem: Problem, batches: int) -> int:
    """Micro-batches that cost: in slots where all ranks meet, those without samples as well."""
    if problem.sync == "step":
        return batches
    whole = -(-batches // problem.slots_multiple_of) * problem.slots_multiple_of
    return max(whole, problem.micro_batches or 0)
