"""One setting, run: the simulator with what the question fixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from balancer.plan import StepPlan
from balancer.planner import plan_step
from balancer.simulation import SimulatedPolicy, simulate
from balancer.simulation.run import epochs
from loaders.reporting.question import Question, Setting

Ints = NDArray[np.int64]


def run(
    question: Question,
    lengths: Ints,
    setting: Setting,
    policies: Iterable[str],
    *,
    steps: int,
    progress: Callable[[str, int], None] | None = None,
) -> tuple[SimulatedPolicy, ...]:
    """`balancer.simulate` at one setting. All settings and policies meet the same steps and jitter."""
    return simulate(
        lengths,
        topology=question.topology,
        max_tokens=setting.max_tokens,
        cost=question.cost,
        policies=policies,
        steps=steps,
        global_batch_size=question.global_batch_size,
        cp_degrees=setting.cp_degrees,
        sync=setting.sync,
        jitter=question.jitter,
        overhead_s=question.overhead_s,
        flops=question.flops,
        seed=question.seed,
        progress=progress,
    )


def rows_of_steps(question: Question, num_samples: int, steps: int) -> list[Ints]:
    """Rows of the steps that `run` runs."""
    return list(islice(epochs(num_samples, question.global_batch_size, steps, seed=question.seed), steps))


def plan(question: Question, lengths: Ints, setting: Setting, policy: str) -> StepPlan:
    """The plan that `run` makes of one step. lengths: [S] of that step."""
    return plan_step(
        lengths,
        topology=question.topology,
        max_tokens=setting.max_tokens,
        cost=question.cost,
        cp_degrees=setting.cp_degrees,
        sync=setting.sync,
        policy=policy,
        seed=question.seed,
    )
