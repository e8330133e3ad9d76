"""How `evenload plan` says what it found: as a table or as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from balancer import admission
from balancer.comparison import PolicyOutcome
from balancer.cost import CostModel
from balancer.topology import Topology
from loaders.cli.lengths import FileLengths
from loaders.packing_job.progress import short
from loaders.reporting.words import many

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_SHOWN = 10
ARBITRARY = "The generic decoder's seconds are arbitrary, ratios are not: give --cost or --model for times."
WHOLE_FILE = 65_536
"""Samples of a step where none are given."""
_LONG_RATE = 9_999_999.5
_COST_FIELDS = ("source", "linear", "quadratic", "fixed", "attention")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What was asked for."""

    files: list[str]
    lengths_from: str
    ranks: int
    max_tokens: int
    cp_degrees: tuple[int, ...]
    sync: str
    global_batch_size: int
    steps_in_epoch: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Admitted:
    """Samples that can be planned, and those that cannot."""

    lengths: NDArray[np.int64]
    """[S] tokens of the samples that can be planned."""
    num_empty: int
    """Samples without tokens."""
    too_long: list[tuple[str, int, int]]
    """(origin, row, tokens) of samples that no allowed degree can hold; rows count over all files."""


def admit(
    files: FileLengths, *, topology: Topology, max_tokens: int, cp_degrees: tuple[int, ...]
) -> Admitted:
    """Sort out what cannot be planned."""
    lengths = files.tokens
    present = np.flatnonzero(lengths > 0)
    refused = admission(lengths[present], topology=topology, max_tokens=max_tokens, cp_degrees=cp_degrees)
    keep = np.ones(present.size, dtype=bool)
    keep[refused.rows] = False
    return Admitted(
        lengths=lengths[present[keep]],
        num_empty=lengths.size - present.size,
        too_long=[(files.name(int(row)), int(row), int(lengths[row])) for row in present[~keep]],
    )


def as_json(
    setting: Setting, cost: CostModel, admitted: Admitted, outcomes: list[PolicyOutcome]
) -> dict[str, Any]:
    """Everything that the table shows, as plain data."""
    return {
        **asdict(setting),
        "cost": cost_numbers(cost),
        **_samples(admitted),
        "policies": {outcome.policy: _numbers(outcome) for outcome in outcomes},
    }


def cost_numbers(cost: CostModel) -> dict[str, Any]:
    """The coefficients and where they come from, as plain data."""
    return {name: getattr(cost, name) for name in _COST_FIELDS}


def _samples(admitted: Admitted) -> dict[str, Any]:
    return {
        "samples": int(admitted.lengths.size),
        "tokens": int(admitted.lengths.sum()),
        "longest": int(admitted.lengths.max(initial=0)),
        "empty": admitted.num_empty,
        "cannot_fit": [
            {"origin": origin, "row": row, "tokens": tokens} for origin, row, tokens in admitted.too_long
        ],
    }


def _numbers(outcome: PolicyOutcome) -> dict[str, Any]:
    if outcome.error:
        return {"error": outcome.error}
    steps = max(outcome.steps, 1)
    return {
        "steps": outcome.steps,
        "step_time_s": outcome.time_s / steps,
        "lower_bound_s": outcome.lower_bound_s / steps,
        "gap": outcome.gap,
        "idle": outcome.idle,
        "imbalance": outcome.imbalance,
        "tokens_per_s": outcome.tokens_per_s,
        "micro_batches": outcome.micro_batches,
        "samples_by_degree": {str(degree): n for degree, n in sorted(outcome.samples_by_degree.items())},
    }


def show(
    console: Console, setting: Setting, cost: CostModel, admitted: Admitted, outcomes: list[PolicyOutcome]
) -> None:
    """Print samples, cost, what cannot fit, and the table of policies."""
    samples = _samples(admitted)
    lines = [
        f"{many(samples['samples'], 'sample')}, {samples['tokens']:,} tokens, longest {samples['longest']:,} "
        f"(from {setting.lengths_from}); {samples['empty']:,} empty",
        f"cost: {cost.source}: {coefficients(cost)}",
        step_line(setting, samples["samples"]),
        *too_long_lines(setting, admitted),
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False)
    console.print(_table(setting, outcomes))
    if cost.source == CostModel.generic().source:
        console.print(ARBITRARY, highlight=False)
    for outcome in outcomes:
        if outcome.error:
            console.print(f"{outcome.policy}: {outcome.error}", highlight=False, markup=False)
        elif outcome.policy == "balanced" and len(setting.cp_degrees) > 1:
            degrees = ", ".join(f"{d}: {n:,}" for d, n in sorted(outcome.samples_by_degree.items()))
            console.print(f"balanced: samples by CP degree {degrees}", highlight=False)


def coefficients(cost: CostModel) -> str:
    """The numbers of a cost model in a line."""
    if cost.table is not None:
        return f"a table of {cost.table.lengths.size} lengths, {cost.fixed:.4g} s a micro-batch"
    return (
        f"{cost.linear:.4g} s a token, {cost.quadratic:.4g} s an attended pair ({cost.attention}), "
        f"{cost.fixed:.4g} s a micro-batch"
    )


def step_line(setting: Setting, samples: int) -> str:
    """What a step is, and what makes it another."""
    batch = setting.global_batch_size
    if batch >= samples:
        every = (
            "the only sample" if samples == 1 else f"all {samples:,} samples; --global-batch-size N for less"
        )
        return f"a step = {every}"
    if batch == WHOLE_FILE:
        return f"a step = {batch:,} of {samples:,} samples; --global-batch-size N for less"
    return f"a step = {many(batch, 'sample')} of {samples:,} (--global-batch-size)"


def cluster(setting: Setting, stages: int = 1) -> str:
    """The ranks and what they hold, in a line."""
    along = f" x {stages} stages" if stages > 1 else ""
    degrees = ", ".join(map(str, setting.cp_degrees))
    ranks = f"{many(setting.ranks, 'rank')}{along} of {setting.max_tokens:,} tokens"
    return f"{ranks}, CP degrees {degrees}, sync {setting.sync}"


def rate(tokens_per_s: float) -> str:
    """Tokens/s; what would take more than nine places is shortened, for tables to fit."""
    return f"{tokens_per_s:,.0f}" if tokens_per_s < _LONG_RATE else short(tokens_per_s)


def too_long_lines(setting: Setting, admitted: Admitted) -> list[str]:
    """Which samples cannot fit, and what to do about them; nothing where all can."""
    if not admitted.too_long:
        return []
    number = len(admitted.too_long)
    ranks = many(max(setting.cp_degrees), "rank")
    first = (
        f"samples that cannot fit on {ranks} of {setting.max_tokens:,} tokens: "
        f"{number:,}, left out below. Raise --max-tokens, allow larger --cp-degrees, or split them."
    )
    lines = [f"  {origin}: {tokens:,} tokens" for origin, _, tokens in admitted.too_long[:_SHOWN]]
    more = [f"  and {number - _SHOWN:,} more"] if number > _SHOWN else []
    return [first, *lines, *more]


def _table(setting: Setting, outcomes: list[PolicyOutcome]) -> Table:
    from rich.table import Table

    planned = max((outcome.steps for outcome in outcomes), default=0)
    steps = f"{planned:,} of {many(setting.steps_in_epoch, 'step')}"
    table = Table(
        title=cluster(setting),
        caption=f"predicted over {steps} of {many(setting.global_batch_size, 'sample')}",
    )
    table.add_column("policy", no_wrap=True)
    for name in ("step time", "above bound", "idle", "imbalance", "tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for outcome in outcomes:
        table.add_row(*_cells(outcome), style="bold" if outcome.policy == "balanced" else "")
    best = next((outcome for outcome in outcomes if not outcome.error), None)
    if best is not None and best.lower_bound_s > 0:
        bound_s, tokens_per_s = best.lower_bound_s / best.steps, best.tokens / best.lower_bound_s
        table.add_section()
        table.add_row("proven bound", f"{bound_s:.4g} s", "", "", "", rate(tokens_per_s))
    return table


def _cells(outcome: PolicyOutcome) -> list[str]:
    if outcome.error:
        return [outcome.policy, "cannot plan", *[""] * 4]
    return [
        outcome.policy,
        f"{outcome.time_s / max(outcome.steps, 1):.4g} s",
        f"{outcome.gap:.2%}",
        f"{outcome.idle:.1%}",
        f"{outcome.imbalance:.3f}",
        rate(outcome.tokens_per_s),
    ]
