"""From step records to numbers: what each policy costs, and pairwise ratios with their uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from clock import StepRecord
from numpy.typing import NDArray


@dataclass(frozen=True)
class Ratio:
    """How many times longer one policy takes than another on the same steps."""

    slower: str
    faster: str
    clock: str
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyRecords:
    """One policy's steps as columns. Axes: N = steps, R = ranks."""

    policy: str
    wall_s: NDArray[np.float64]
    """[N] From the first rank's start to the last rank's end."""
    cpu_s: NDArray[np.float64]
    """[N, R]"""
    wait_s: NDArray[np.float64]
    """[N, R] From a rank's own last gradient to the exchanged ones."""
    predicted_s: NDArray[np.float64]
    """[N, R]"""
    real_tokens: NDArray[np.int64]
    """[N, R]"""
    computed_tokens: NDArray[np.int64]
    """[N, R]"""
    capacity_tokens: NDArray[np.int64]
    """[N, R]"""
    loss: NDArray[np.float64]
    """[N] Mean over the step's labels."""

    @property
    def critical_s(self) -> NDArray[np.float64]:
        """[N] CPU seconds of the rank that has most: what the step would take on an idle machine."""
        return self.cpu_s.max(axis=1)


def by_policy(records: Sequence[StepRecord], *, first_step: int = 0) -> dict[str, PolicyRecords]:
    """Columns of each policy's steps from ``first_step`` on, in the order of the steps."""
    ranks = 1 + max(record.rank for record in records)
    columns = {}
    for policy in dict.fromkeys(record.policy for record in records):
        mine = [record for record in records if record.policy == policy and record.step >= first_step]
        table = sorted(mine, key=lambda record: (record.step, record.rank))
        steps = [table[at : at + ranks] for at in range(0, len(table), ranks)]

        def matrix(name: str, steps: list[list[StepRecord]] = steps) -> NDArray[Any]:
            return np.array([[getattr(record, name) for record in step] for step in steps])

        columns[policy] = PolicyRecords(
            policy=policy,
            wall_s=matrix("end").max(axis=1) - matrix("start").min(axis=1),
            cpu_s=matrix("cpu_s"),
            wait_s=np.array([[record.seconds("wait") for record in step] for step in steps]),
            predicted_s=matrix("predicted_s"),
            real_tokens=matrix("real_tokens"),
            computed_tokens=matrix("computed_tokens"),
            capacity_tokens=matrix("capacity_tokens"),
            loss=matrix("loss_sum").sum(axis=1) / matrix("loss_tokens").sum(axis=1),
        )
    return columns


def imbalance(rank_s: NDArray[np.float64]) -> float:
    """Slowest rank / mean, over all steps. rank_s: [N, R]."""
    return float(rank_s.max(axis=1).sum() / rank_s.mean(axis=1).sum())


def summary(records: PolicyRecords) -> dict[str, Any]:
    """The row of one policy in the table."""
    low, median, high = np.percentile(records.wall_s, [25, 50, 75])
    return {
        "policy": records.policy,
        "steps": int(records.wall_s.size),
        "tokens_per_s": float(records.real_tokens.sum() / records.wall_s.sum()),
        "step_s": float(median),
        "step_s_quartiles": [float(low), float(high)],
        "wait_share": float(records.wait_s.max(axis=1).sum() / records.wall_s.sum()),
        "padding": float(1 - records.real_tokens.sum() / records.computed_tokens.sum()),
        "fill": float(records.real_tokens.sum() / records.capacity_tokens.sum()),
        "imbalance_predicted": imbalance(records.predicted_s),
        "imbalance_measured": imbalance(records.cpu_s),
        "efficiency": 1 / imbalance(records.cpu_s),
        "critical_s": float(records.critical_s.sum()),
        "predicted_s": float(records.predicted_s.max(axis=1).sum()),
        "loss": [round(float(loss), 4) for loss in records.loss],
    }


def paired_ratio(
    slower: NDArray[np.float64], faster: NDArray[np.float64], *, resamples: int = 4000, seed: int = 0
) -> tuple[float, float, float]:
    """Ratio of sums over the same steps, and the 95 % interval of a bootstrap over steps.

    Args:
        slower: [N] seconds of each step under one policy.
        faster: [N] seconds of the same steps under the other.
    """
    draws = np.random.default_rng(seed).integers(0, slower.size, (resamples, slower.size))
    ratios = slower[draws].sum(axis=1) / faster[draws].sum(axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(slower.sum() / faster.sum()), float(low), float(high)


def compare(policies: dict[str, PolicyRecords]) -> list[Ratio]:
    """Every earlier policy over every later one, in wall time and on the critical path."""
    names = list(policies)
    return [
        Ratio(
            slower,
            faster,
            clock,
            *paired_ratio(getattr(policies[slower], clock), getattr(policies[faster], clock)),
        )
        for clock in ("wall_s", "critical_s")
        for at, slower in enumerate(names)
        for faster in names[at + 1 :]
    ]


def results(records: Sequence[StepRecord], *, first_step: int, **facts: Any) -> dict[str, Any]:
    """Everything the table, the pictures and the README need, as JSON holds it."""
    policies = by_policy(records, first_step=first_step)
    return {
        **facts,
        "first_step": first_step,
        "policies": [summary(policy) for policy in policies.values()],
        "ratios": [asdict(ratio) for ratio in compare(policies)],
        "records": [record.as_dict() for record in records],
    }
