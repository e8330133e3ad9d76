"""A plan, run on GPUs that may differ from those that it was made for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer._kernels.walk import one_forward_one_backward
from balancer.plan import StepPlan

FORWARD_SHARE = 1 / 3
"""Of forward + backward: a matrix product has two gradients."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Walk:
    """One step as it ran. Axes: R = data ranks, P = pipeline stages."""

    time_s: float
    """Seconds until the last GPU ends."""
    busy_s: NDArray[np.float64]
    """[R, P] Seconds that each GPU computes, at its own pace; waits and dummies do not count."""
    held_tokens: NDArray[np.float64]
    """[R] Most tokens that a rank's first stage holds at once, forward done and backward not."""


def walk(
    plan: StepPlan,
    pace: NDArray[np.float64],
    *,
    idle_s: float = 0.0,
    forward_share: float = FORWARD_SHARE,
) -> Walk:
    """Run a plan under 1F1B, micro-batches of unequal length and GPUs of unequal pace.

    Args:
        plan: the step; ``cost_s`` is what one nominal stage takes.
        pace: [R, P] seconds that a nominal second takes on each GPU of rank and stage.
        idle_s: seconds of a dummy micro-batch, which ranks without work run under ``sync="micro_batch"``.
        forward_share: the forward part of a micro-batch's time.

    A group starts an operation when the last of its ranks is free and goes at its slowest rank's pace; a
    stage starts a micro-batch when the stage before has sent it. Sending takes no time. Under
    ``sync="micro_batch"`` all ranks of a stage start and end every operation together.

    With equal micro-batches and stages this is ``(slots + P - 1) * time``. With unequal ones it may be below
    or above ``sum + (P - 1) * largest``, which is what the planner predicts.

    Cost: O(P * (micro-batches * degree + slots)), times R under ``sync="micro_batch"``.

    Raises:
        ValueError: pace that is not [plan.ranks, P], finite and positive, or a share outside 0..1.
    """
    if pace.ndim != 2 or pace.shape[0] != plan.ranks or not np.all(np.isfinite(pace) & (pace > 0)):
        raise ValueError(
            f"pace must hold finite positive numbers, [{plan.ranks} ranks, stages], got shape {pace.shape}."
        )
    if not 0 <= forward_share <= 1:
        raise ValueError(f"forward_share must lie in 0..1, got {forward_share!r}.")
    batches = plan.micro_batches
    slot_start = np.searchsorted(batches.slot, np.arange(plan.num_slots + 1))
    time_s, busy, held = one_forward_one_backward(
        batches.first_rank,
        batches.cp_degree,
        slot_start,
        batches.cost_s * forward_share,
        batches.cost_s * (1 - forward_share),
        idle_s * forward_share,
        idle_s * (1 - forward_share),
        batches.tokens / batches.cp_degree,
        np.ascontiguousarray(pace, dtype=np.float64),
        plan.sync == "micro_batch",
    )
    return Walk(time_s=float(time_s), busy_s=busy, held_tokens=held)


def paces(
    slowness: NDArray[np.float64], stage_multipliers: Sequence[float] | None, stages: int
) -> NDArray[np.float64]:
    """[R, P] pace of every GPU. slowness: [R]; stage_multipliers: [P], time over that of a nominal stage.

    Raises:
        ValueError: not one finite positive multiplier for each stage.
    """
    factors = np.ones(stages) if stage_multipliers is None else np.asarray(stage_multipliers, np.float64)
    if factors.shape != (stages,) or not np.all(np.isfinite(factors) & (factors > 0)):
        raise ValueError(
            f"stage_multipliers must hold {stages} finite positive numbers, one a pipeline stage, got "
            f"{stage_multipliers!r}."
        )
    return np.outer(slowness, factors)
