"""What each policy would cost on given lengths: the production planner, run on every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.plan import StepPlan
from balancer.planner import plan_step

Progress = Callable[[str, int], None]


@dataclass(kw_only=True, slots=True)
class PolicyOutcome:
    """Sums over the steps that one policy planned."""

    policy: str
    steps: int = 0
    samples: int = 0
    tokens: int = 0
    time_s: float = 0.0
    """Predicted time of all steps."""
    lower_bound_s: float = 0.0
    """Proven: no plans of these steps are faster."""
    busy_s: float = 0.0
    """Predicted seconds that ranks compute, summed over ranks."""
    rank_s: float = 0.0
    """Seconds that ranks are there: ranks times ``time_s``."""
    micro_batches: int = 0
    samples_by_degree: dict[int, int] = field(default_factory=dict)
    first_plan: StepPlan | None = None
    """Plan of the first step, for pictures."""
    error: str = ""
    """Why the policy cannot plan these steps; empty where it can."""

    @property
    def gap(self) -> float:
        """Predicted time / proven bound - 1."""
        return self.time_s / self.lower_bound_s - 1.0 if self.lower_bound_s > 0 else 0.0

    @property
    def idle(self) -> float:
        """Share of the ranks' time in which they wait."""
        return max(1.0 - self.busy_s / self.rank_s, 0.0) if self.rank_s > 0 else 0.0

    @property
    def imbalance(self) -> float:
        """Slowest rank's predicted time / mean, over the steps in proportion to their time."""
        return self._slowest_s / self._mean_s if self._mean_s > 0 else 1.0

    @property
    def tokens_per_s(self) -> float:
        """Real tokens of all ranks in each predicted second."""
        return self.tokens / self.time_s if self.time_s > 0 else 0.0

    _slowest_s: float = 0.0
    _mean_s: float = 0.0

    def add(self, plan: StepPlan, lengths: NDArray[np.int64]) -> None:
        """Count one more step. lengths: [S] of that step."""
        batches = plan.micro_batches
        if self.first_plan is None:
            self.first_plan = plan
        self.steps += 1
        self.samples += lengths.size
        self.tokens += int(lengths.sum())
        self.time_s += plan.time_s
        self.lower_bound_s += plan.lower_bound_s
        self.busy_s += float(plan.rank_time_s.sum())
        self.rank_s += plan.time_s * plan.ranks
        self._slowest_s += float(plan.rank_time_s.max())
        self._mean_s += float(plan.rank_time_s.mean())
        self.micro_batches += len(batches)
        sizes = np.diff(batches.offsets)
        for degree in np.unique(batches.cp_degree).tolist():
            count = int(sizes[batches.cp_degree == degree].sum())
            self.samples_by_degree[degree] = self.samples_by_degree.get(degree, 0) + count


def compare_policies(
    lengths: NDArray[np.int64],
    steps: Sequence[NDArray[np.int64]],
    policies: Iterable[str],
    *,
    progress: Progress | None = None,
    **options: Any,
) -> list[PolicyOutcome]:
    """Plan every step with every policy.

    Args:
        lengths: [S] tokens of each sample, all of which fit (`balancer.admission` lists the others).
        steps: rows of each step.
        policies: names from `balancer.POLICIES`. One that cannot plan a step carries the reason.
        progress: called with (policy, steps done).
        options: what `plan_step` takes: topology, max_tokens, cost, cp_degrees, sync, micro_batches, seed.
    """
    outcomes = []
    for policy in policies:
        outcome = PolicyOutcome(policy=policy)
        for number, rows in enumerate(steps):
            try:
                outcome.add(plan_step(lengths[rows], policy=policy, **options), lengths[rows])
            except ValueError as error:
                outcome.error = str(error)
                break
            if progress is not None:
                progress(policy, number + 1)
        outcomes.append(outcome)
    return outcomes


def shuffled_steps(num_samples: int, batch: int, *, seed: int = 0) -> list[NDArray[np.int64]]:
    """Rows of each step of one epoch, ``batch`` samples a step; the last may be smaller."""
    order = np.random.default_rng(seed).permutation(num_samples).astype(np.int64)
    return [order[start : start + batch] for start in range(0, num_samples, batch)]
