"""Many steps, every policy, one cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.comparison import Progress, shuffled_steps
from balancer.plan import StepPlan
from balancer.planner import plan_step
from balancer.planning.problem import Cost, Ints, check_lengths
from balancer.policies import POLICIES
from balancer.simulation.flops import ModelFlops
from balancer.simulation.outcome import SimulatedPolicy
from balancer.simulation.walk import FORWARD_SHARE, Walk, paces, walk
from balancer.topology import Topology
from packing.checks import check_choice
from packing.table import SampleTable

LARGEST_STEP = 65_536
"""Samples of a step where no global batch size is given, or all of them if they are fewer."""


def simulate(
    table_or_lengths: SampleTable | ArrayLike,
    *,
    topology: Topology,
    max_tokens: int | Sequence[int] | Ints,
    cost: Cost,
    policies: Iterable[str] | None = None,
    steps: int | None = None,
    global_batch_size: int | None = None,
    cp_degrees: Sequence[int] = (1,),
    sync: str = "step",
    micro_batches: int | None = None,
    jitter: float = 0.0,
    stragglers: Mapping[int, float] | None = None,
    stage_multipliers: Sequence[float] | None = None,
    forward_share: float = FORWARD_SHARE,
    overhead_s: float = 0.0,
    flops: ModelFlops | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[SimulatedPolicy, ...]:
    """Train on a cluster that is not there: plan every step as training would, then run the plans.

    All policies get the same steps and the same jitter, so that they differ by their plans alone.

    Args:
        table_or_lengths: samples of an epoch, or [S] their lengths in tokens; each must fit.
        topology: data ranks, nodes, speeds that the planner knows, and pipeline stages.
        max_tokens: tokens that one rank holds in one micro-batch, as `balancer.plan_step` takes them.
        cost: predicted time of one pipeline stage, see `balancer.CostModel`.
        policies: names from `balancer.POLICIES`; all by default.
        steps: how many; by default one epoch. Epoch after epoch is shuffled anew.
        global_batch_size: samples a step; by default all, at most 65,536. The last step may have fewer.
        cp_degrees: how many neighbouring ranks may share a micro-batch.
        sync: ``"step"`` or ``"micro_batch"``: when ranks meet.
        micro_batches: slots that every rank runs; ``None``: as many as the plan needs.
        jitter: standard deviation of the logarithm of each GPU's pace, drawn anew every step; the mean is 1.
        stragglers: rank -> speed, 0.5 for half of what the planner believes. On top of ``topology.speed``.
        stage_multipliers: [P] time of each pipeline stage over that of ``cost``; all 1 by default.
        forward_share: the forward part of a micro-batch's time.
        overhead_s: seconds added to every step, such as an optimizer's or what is not hidden of its exchange.
        flops: the model's FLOPs and the GPUs' peak, for MFU.
        seed: order of the samples, jitter and search.
        progress: called with (policy, steps done).
        options: further arguments of `plan_step`.

    Returns:
        One column set for each policy, in the order given. One that cannot plan a step says why.

    Cost: the planner's time, 6 ms for 16 samples on each of 1,024 ranks, and 0.1 ms for the walk.

    Raises:
        ValueError: an argument out of its range.
    """
    names = tuple(POLICIES) if policies is None else tuple(policies)
    for name in names:
        check_choice("each of policies", name, POLICIES)
    lengths = check_lengths(table_or_lengths)
    batch = min(max(lengths.size, 1), LARGEST_STEP) if global_batch_size is None else global_batch_size
    for name, number in (("steps", steps), ("global_batch_size", batch)):
        if number is not None and (int(number) != number or number < 1):
            raise ValueError(f"{name} must be a whole number of at least 1, got {number!r}.")
    cluster = _Cluster(
        topology=topology,
        pace=paces(_slowness(topology, stragglers or {}), stage_multipliers, topology.pipeline_stages),
        jitter=_at_least_zero("jitter", jitter),
        idle_s=cost.fixed_nanoseconds(1) * 1e-9,
        forward_share=forward_share,
        max_tokens=np.broadcast_to(np.asarray(max_tokens, np.float64), (topology.ranks,)),
        overhead_s=_at_least_zero("overhead_s", overhead_s),
        flops=flops,
        seed=seed,
    )
    fixed = {
        "topology": topology,
        "max_tokens": max_tokens,
        "cost": cost,
        "cp_degrees": cp_degrees,
        "sync": sync,
        "micro_batches": micro_batches,
        "seed": seed,
        **options,
    }
    return tuple(
        _run(name, table_or_lengths, lengths, (batch, steps), cluster, progress, fixed) for name in names
    )


def epochs(num_samples: int, batch: int, steps: int | None, *, seed: int) -> Iterator[NDArray[np.int64]]:
    """Rows of each step: one epoch, or ``steps`` of as many epochs as that takes."""
    if num_samples == 0:
        return iter(())
    if steps is None:
        return iter(shuffled_steps(num_samples, batch, seed=seed))
    every = (rows for epoch in count() for rows in shuffled_steps(num_samples, batch, seed=seed + epoch))
    return islice(every, steps)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cluster:
    """What runs the plans. Axes: R = ranks, P = stages."""

    topology: Topology
    pace: NDArray[np.float64]
    """[R, P]"""
    jitter: float
    idle_s: float
    forward_share: float
    max_tokens: NDArray[np.float64]
    """[R]"""
    overhead_s: float
    flops: ModelFlops | None
    seed: int

    def run(self, plan: StepPlan, step: int) -> Walk:
        """One step, with the jitter that every policy meets in it."""
        pace = self.pace
        if self.jitter > 0:
            rng = np.random.default_rng((self.seed, step))
            pace = pace * np.exp(rng.normal(-0.5 * self.jitter**2, self.jitter, pace.shape))
        return walk(plan, pace, idle_s=self.idle_s, forward_share=self.forward_share)


@dataclass(kw_only=True)
class _Columns:
    """Columns that grow step by step."""

    rows: list[tuple[float, ...]] = field(default_factory=list)
    rank_busy_s: NDArray[np.float64]

    def add(self, plan: StepPlan, ran: Walk, lengths: NDArray[np.int64], cluster: _Cluster) -> None:
        step_s = ran.time_s + cluster.overhead_s
        stages = ran.busy_s.shape[1]
        self.rank_busy_s += ran.busy_s.mean(axis=1)
        self.rows.append(
            (
                step_s,
                plan.time_s,
                plan.lower_bound_s,
                float(lengths.sum()),
                float(ran.busy_s.sum()),
                float(ran.held_tokens.max()),
                float((ran.held_tokens / (stages * cluster.max_tokens)).max()),
                0.0 if cluster.flops is None else cluster.flops(lengths),
            )
        )

    def outcome(self, policy: str, cluster: _Cluster, error: str) -> SimulatedPolicy:
        columns = np.array(self.rows, dtype=np.float64).reshape(-1, 8).T
        step, planned, bound, tokens, busy, held, memory, needed = columns
        return SimulatedPolicy(
            policy=policy,
            step_s=step,
            planned_s=planned,
            lower_bound_s=bound,
            tokens=tokens.astype(np.int64),
            busy_s=busy,
            rank_busy_s=self.rank_busy_s,
            held_tokens=held,
            memory=memory,
            model_flop=None if cluster.flops is None else needed,
            peak=None if cluster.flops is None else cluster.flops.peak,
            gpus=cluster.pace.size,
            error=error,
        )


def _run(
    policy: str,
    table_or_lengths: SampleTable | ArrayLike,
    lengths: NDArray[np.int64],
    epoch: tuple[int, int | None],
    cluster: _Cluster,
    progress: Progress | None,
    fixed: dict[str, Any],
) -> SimulatedPolicy:
    columns, error = _Columns(rank_busy_s=np.zeros(cluster.topology.ranks)), ""
    batch, steps = epoch
    for step, rows in enumerate(epochs(lengths.size, batch, steps, seed=cluster.seed)):
        mine = table_or_lengths.take(rows) if isinstance(table_or_lengths, SampleTable) else lengths[rows]
        try:
            plan = plan_step(mine, policy=policy, **fixed)
        except ValueError as refusal:
            error = str(refusal)
            break
        columns.add(plan, cluster.run(plan, step), lengths[rows], cluster)
        if progress is not None:
            progress(policy, step + 1)
    return columns.outcome(policy, cluster, error)


def _slowness(topology: Topology, stragglers: Mapping[int, float]) -> NDArray[np.float64]:
    """[R] seconds that each rank takes for a nominal one. Raises ValueError."""
    slowness = np.ones(topology.ranks) if topology.speed is None else 1.0 / topology.speed
    for rank, speed in stragglers.items():
        if int(rank) != rank or not 0 <= rank < topology.ranks:
            raise ValueError(f"stragglers must name ranks 0..{topology.ranks - 1}, got {rank!r}.")
        if not (np.isfinite(speed) and speed > 0):
            raise ValueError(
                f"stragglers must have finite speeds above 0, rank {rank} has {speed!r}. A rank that stands "
                "still stops the job: leave it out of the topology."
            )
        slowness[rank] /= speed
    return slowness


def _at_least_zero(name: str, number: float) -> float:
    if not (np.isfinite(number) and number >= 0):
        raise ValueError(f"{name} must be a finite number of at least 0, got {number!r}.")
    return float(number)
