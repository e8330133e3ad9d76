"""The front: one step's lengths in, its plan out."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike

from balancer.bounds import lower_bound_ns
from balancer.plan import StepPlan
from balancer.planning.layout import make_plan
from balancer.planning.problem import Cost, Ints, make_problem
from balancer.policies import POLICIES
from balancer.topology import Topology
from packing.table import SampleTable


def plan_step(
    table_or_lengths: SampleTable | ArrayLike,
    *,
    topology: Topology,
    max_tokens: int | Sequence[int] | Ints,
    cost: Cost,
    cp_degrees: Sequence[int] = (1,),
    sync: str = "step",
    micro_batches: int | None = None,
    policy: str = "balanced",
    seed: int = 0,
) -> StepPlan:
    """Divide one step's samples over the ranks.

    Args:
        table_or_lengths: the step's samples, or [S] their lengths in tokens.
        topology: ranks, nodes, speeds and pipeline stages.
        max_tokens: tokens that one rank can hold in one micro-batch, or [R] one number for each rank.
        cost: predicted time, see `balancer.CostModel`.
        cp_degrees: how many neighbouring ranks may share a micro-batch.
        sync: ``"step"``: ranks meet once a step; ``"micro_batch"``: they meet in every slot.
        micro_batches: slots that every rank runs; ``None``: as many as the plan needs.
        policy: one of `balancer.POLICIES`.
        seed: breaks ties of randomised policies.

    Equal arguments give an equal plan on every rank, platform and thread: all decisions are made in whole
    nanoseconds. A micro-batch's ``cost_s`` is that of its true lengths; alignment padding counts against
    ``max_tokens`` only. A rank may be left empty.

    Raises:
        ValueError: an argument out of its range, or a sample that no allowed degree can hold.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}.")
    problem = make_problem(
        table_or_lengths,
        topology=topology,
        max_tokens=max_tokens,
        cost=cost,
        cp_degrees=cp_degrees,
        sync=sync,
        micro_batches=micro_batches,
        seed=seed,
    )
    layout = POLICIES[policy](problem)
    return make_plan(problem, layout, lower_bound_ns=lower_bound_ns(problem), policy=policy)
