"""Everything that a report says, computed once."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.costs.model import CostModel
from balancer.policies import POLICIES
from balancer.simulation import SimulatedPolicy
from loaders.cli.plan_report import Admitted, cost_numbers
from loaders.cli.simulate_report import policy_numbers
from loaders.reporting.choice import Recommendation, recommend
from loaders.reporting.gains import Gain, gain
from loaders.reporting.lanes import DegreeUse, Lanes, degree_use, lanes
from loaders.reporting.profile import Profile, profile
from loaders.reporting.question import Progress, Question, Setting
from loaders.reporting.running import Ints, plan, rows_of_steps, run
from loaders.reporting.search import (
    Candidate,
    candidates,
    static_policies,
    tuned_static,
)

BEFORE = "equal_samples"
"""What a packed loader with a distributed sampler does: the way that most runs go today."""

BALANCED = "balanced"
_DEGREE_STEPS = 16
_MOST_OF_IT = 0.9
_SHIFTS = (0.5, 2.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the comparison: `evenload simulate`'s numbers for a policy at a setting."""

    name: str
    policy: str
    setting: Setting
    numbers: dict[str, Any]
    """As `evenload simulate --json` has them, or ``error``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shift:
    """The gains, had attention cost another multiple of what is assumed."""

    attention: float
    """Factor on the cost of an attended pair."""
    times: dict[str, float]
    """Way -> its time over balanced at the recommended setting."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Report:
    """All of it. Data only."""

    question: Question
    lengths_from: str
    profile: Profile
    admitted: int
    """Samples that fit at the given setting; all numbers below are theirs."""
    steps_in_epoch: int
    tried: tuple[Candidate, ...]
    recommended: Recommendation
    rows: tuple[Row, ...]
    """Every policy at the given setting, then the tuned single degree, then the recommended setting last."""
    gains: tuple[Gain, ...]
    """Of the recommended setting over every other row that can be planned."""
    shifts: tuple[Shift, ...]
    """Empty for measured tables, which have no coefficient of attention."""
    before: Lanes | None
    """The step whose gain is the median one, as most runs go today; ``None`` where no policy can plan it."""
    after: Lanes
    """The same step, balanced at the recommended setting."""
    picture_step: int
    held_up: float
    """Share of the steps in which the longest sample alone takes 90 % of the recommended plan's time."""
    degrees: tuple[DegreeUse, ...]
    """Of the recommended setting, over the first 16 steps at most."""

    def row(self, name: str) -> Row | None:
        """A row by its name."""
        return next((row for row in self.rows if row.name == name), None)

    @property
    def best(self) -> Row:
        """The recommended setting's row."""
        return self.rows[-1]

    def gain_over(self, name: str) -> Gain | None:
        """The gain over a row."""
        return next((gain for gain in self.gains if gain.over == name), None)


def gather(question: Question, admitted: Admitted, lengths_from: str, progress: Progress) -> Report:
    """Compute a report.

    Args:
        question: cluster, model and what is run today.
        admitted: the samples that fit at the given setting, and those that do not.
        lengths_from: where lengths came from, in words.
        progress: called while it goes.

    Raises:
        ValueError: no sample fits, or no setting can run them.
    """
    lengths = admitted.lengths
    counted = profile(admitted, topology=question.topology, given=question.given)
    if not lengths.size:
        raise ValueError(
            f"none of {counted.samples:,} samples can run: the shortest has more tokens than "
            f"{question.given} hold. Raise --max-tokens or allow larger --cp-degrees."
            if counted.samples
            else "there are no samples with tokens in these files."
        )
    tried = candidates(question, lengths, progress)
    best = recommend(question, tried)
    rows, outcomes = _rows(question, lengths, best.setting, progress)
    step, before = _picture_step(outcomes)
    steps = rows_of_steps(question, lengths.size, question.steps)
    at_step = lengths[steps[step]]
    return Report(
        question=question,
        lengths_from=lengths_from,
        profile=counted,
        admitted=lengths.size,
        steps_in_epoch=-(-lengths.size // question.global_batch_size),
        tried=tried,
        recommended=best,
        rows=rows,
        gains=_gains(question, rows, outcomes),
        shifts=_shifts(question, lengths, rows, progress),
        before=None if before is None else lanes("before", plan(question, at_step, question.given, before)),
        after=lanes("after", plan(question, at_step, best.setting, BALANCED)),
        picture_step=step,
        held_up=_held_up(question, lengths, steps, best.setting, outcomes[-1].planned_s),
        degrees=_degrees(question, lengths, steps[:_DEGREE_STEPS], best.setting),
    )


def policies_for(ranks: int) -> list[str]:
    """Policies that plan in seconds on so many ranks."""
    wide = "karmarkar_karp" not in static_policies(ranks)
    return [name for name in POLICIES if not (wide and name == "karmarkar_karp")]


def _rows(
    question: Question, lengths: Ints, best: Setting, progress: Progress
) -> tuple[tuple[Row, ...], list[SimulatedPolicy]]:
    """The comparison's lines and what was simulated for each."""
    names = policies_for(question.topology.ranks)
    tuned = tuned_static(question, lengths, best, progress)
    jobs = [(name, name, question.given) for name in names]
    if tuned is not None:
        jobs.append(("tuned_static", tuned[1], tuned[0]))
    jobs.append(("recommended", BALANCED, best))
    outcomes: list[SimulatedPolicy] = []
    steps = count(1)

    def tell(_: str, __: int) -> None:
        progress("policies", next(steps), len(jobs) * question.steps)

    for _, policy, setting in jobs:
        outcomes += run(question, lengths, setting, [policy], steps=question.steps, progress=tell)
    rows = [
        Row(name=name, policy=policy, setting=setting, numbers=policy_numbers(outcome))
        for (name, policy, setting), outcome in zip(jobs, outcomes, strict=True)
    ]
    return tuple(rows), outcomes


def _gains(question: Question, rows: tuple[Row, ...], outcomes: list[SimulatedPolicy]) -> tuple[Gain, ...]:
    best = outcomes[-1]
    return tuple(
        gain(row.name, outcome.step_s, best.step_s, fit=question.cost.report, seed=question.seed)
        for row, outcome in zip(rows[:-1], outcomes[:-1], strict=True)
        if not outcome.error
    )


def _picture_step(outcomes: list[SimulatedPolicy]) -> tuple[int, str | None]:
    """(the step whose gain is the median, the policy of the picture before)."""
    best = outcomes[-1]
    choices = [o for o in outcomes[:-2] if not o.error]
    before = next((o for o in choices if o.policy == BEFORE), choices[0] if choices else None)
    if before is None:
        return 0, None
    ratios = before.step_s / best.step_s
    return int(np.argsort(ratios, kind="stable")[ratios.size // 2]), before.policy


def _shifts(
    question: Question, lengths: Ints, rows: tuple[Row, ...], progress: Progress
) -> tuple[Shift, ...]:
    """Published fits differ 16-fold in where attention overtakes the rest: what that does to the gains."""
    cost = question.cost
    if not isinstance(cost, CostModel) or cost.table is not None or cost.quadratic == 0:
        return ()
    chosen = [
        row for row in rows if row.name in (BEFORE, "padded", "tuned_static") and "error" not in row.numbers
    ]
    found = []
    for number, factor in enumerate(_SHIFTS):
        shifted = question.with_cost(replace(cost, quadratic=cost.quadratic * factor))
        steps = question.steps
        (best,) = run(shifted, lengths, rows[-1].setting, [BALANCED], steps=steps)
        times = {}
        for row in chosen:
            (other,) = run(shifted, lengths, row.setting, [row.policy], steps=steps)
            times[row.name] = other.time_s / best.time_s
        found.append(Shift(attention=factor, times=times))
        progress("sensitivity", number + 1, len(_SHIFTS))
    return tuple(found)


def _held_up(
    question: Question, lengths: Ints, steps: list[Ints], best: Setting, planned_s: NDArray[np.float64]
) -> float:
    """Share of the steps that no plan can shorten much, since their longest sample takes that long."""
    cost, widest = question.cost.for_topology(question.topology), best.cp_degrees[-1]
    longest = np.array([lengths[rows].max() for rows in steps], np.int64)
    alone_s = cost(longest, widest) + cost.fixed_s(widest)
    return float(np.mean(alone_s >= _MOST_OF_IT * planned_s))


def _degrees(question: Question, lengths: Ints, steps: list[Ints], best: Setting) -> tuple[DegreeUse, ...]:
    return degree_use([(plan(question, lengths[rows], best, BALANCED), lengths[rows]) for rows in steps])


def as_json(report: Report) -> dict[str, Any]:
    """Everything that the page shows, as plain data."""
    question = report.question
    topology = question.topology
    return {
        "files": list(question.files),
        "lengths_from": report.lengths_from,
        "cluster": {
            "ranks": topology.ranks,
            "ranks_per_node": topology.ranks_per_node,
            "pipeline_stages": topology.pipeline_stages,
            "tensor_parallel": question.tensor_parallel,
            "gpu": question.gpu,
            "jitter": question.jitter,
            "overhead_s": question.overhead_s,
        },
        "model": question.model,
        "recompute": question.recompute,
        "cost": {**cost_numbers(question.cost), "fit": plain(question.cost.report)},
        "memory": plain(question.memory),
        "given": plain(question.given),
        "global_batch_size": question.global_batch_size,
        "steps": question.steps,
        "search_steps": question.search_steps,
        "seed": question.seed,
        **{
            field.name: plain(getattr(report, field.name))
            for field in fields(report)
            if field.name not in ("question", "lengths_from")
        },
    }


def plain(value: Any) -> Any:
    """Dataclasses, arrays and tuples as JSON has them."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value
