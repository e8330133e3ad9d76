"""How `evenload inspect` says what it found: as tables or as JSON."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from balancer.cost import CostModel
from loaders.cli.plan_report import ARBITRARY
from loaders.packing_job.progress import short
from loaders.planning.inspection import PERCENTILES, Inspection, SourceFacts, StepFacts
from loaders.planning.rehearsal import HeavyBatch
from loaders.reporting.words import many

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_RANKS_SHOWN = 16
_LONG = 1_000_000
"""Counts from here on are shortened, for tables to fit a terminal of 80."""


def as_json(found: Inspection) -> dict[str, Any]:
    """Everything that the tables show, and the rest, as plain data."""
    plain = {
        field.name: getattr(found, field.name)
        for field in fields(found)
        if field.name not in ("sources", "steps", "worst", "origins")
    }
    return {
        **plain,
        "sources": [_source_numbers(source) for source in found.sources],
        "steps": [asdict(step) for step in found.steps],
        "worst": [
            _heavy_numbers(heavy, found)
            | {"longest": [{"origin": origin, "tokens": tokens} for origin, tokens in origins]}
            for heavy, origins in zip(found.worst, found.origins, strict=True)
        ],
    }


def _source_numbers(source: SourceFacts) -> dict[str, Any]:
    numbers = asdict(source)
    values = numbers.pop("percentiles")
    return numbers | {f"p{at}": value for at, value in zip(PERCENTILES, values, strict=True)}


def _heavy_numbers(heavy: HeavyBatch, found: Inspection) -> dict[str, Any]:
    return {
        "step": heavy.step,
        "ranks": [heavy.ranks.start, heavy.ranks.stop - 1],
        "slot": heavy.slot,
        "tokens": heavy.tokens,
        "samples": heavy.num_samples,
        "time_s": heavy.time_s,
        "units": dict(heavy.units),
        "sample_ids": [
            [found.sources[source].name, row]
            for source, row in zip(heavy.table.source.tolist(), heavy.table.row.tolist(), strict=True)
        ],
    }


def show(console: Console, found: Inspection) -> None:
    """Print the tables."""
    console.print(_sources(found))
    for source in found.sources:
        beside = [f"{count:,} {name}" for name, count in source.counts.items() if count]
        beside += [f"{short(units)} {phase} units" for phase, units in source.units.items() if units]
        if beside:
            _say(console, f"{source.label}: {', '.join(beside)}")
    _say(
        console,
        f"An epoch has {many(found.steps_in_epoch, 'step')} on {many(found.ranks, 'rank')} of "
        f"{found.max_tokens:,} tokens; shares are of the first {many(found.looked_at, 'sample')}.",
    )
    if found.cost == CostModel.generic().source:
        _say(console, ARBITRARY)
    labels = {source.name: source.label for source in found.sources}
    for step in found.steps:
        sources = ", ".join(f"{count:,} {labels[name]}" for name, count in step.by_source.items() if count)
        of = f" ({sources})" if len(labels) > 1 else ""
        _say(console, f"\nStep {step.step}: {many(step.samples, 'sample')}{of}, {step.tokens:,} tokens")
        console.print(_step(step))
        degrees = ", ".join(f"{count} of degree {degree}" for degree, count in step.cp_degrees.items())
        _say(
            console,
            f"micro-batches: {degrees}; fill {step.fill:.1%}, imbalance {step.imbalance:.3f}, "
            f"gap {step.gap:.2%}, predicted {step.time_s:.3g} s",
        )
    if found.worst:
        _say(console, "\nHeaviest micro-batches of the epoch, and their longest samples")
    for heavy, origins in zip(found.worst, found.origins, strict=True):
        first, last = heavy.ranks.start, heavy.ranks.stop - 1
        ranks = f"rank {first}" if first == last else f"ranks {first}-{last}"
        _say(
            console,
            f"step {heavy.step}, {ranks}, slot {heavy.slot}: {heavy.tokens:,} tokens a rank, "
            f"{many(heavy.num_samples, 'sample')}, {heavy.time_s:.3g} s",
        )
        for origin, tokens in origins:
            _say(console, f"  {tokens:,} tokens: {origin}")


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False)


def _sources(found: Inspection) -> Table:
    from rich.table import Table

    table = Table(title="sources, and lengths of their samples in tokens", padding=0)
    table.add_column("source", overflow="fold", min_width=10)
    for name in ("rows", "tokens", *(f"p{at}" for at in PERCENTILES), "longest", "% samples", "% tokens"):
        table.add_column(name.replace("% ", "% of\n"), justify="right", no_wrap=True)
    for source in found.sources:
        table.add_row(
            source.label,
            _count(source.rows),
            short(source.tokens),
            *map(_count, source.percentiles),
            _count(source.longest),
            f"{source.sample_share:.1%}",
            f"{source.token_share:.1%}",
        )
    return table


def _count(number: int) -> str:
    return f"{number:,}" if number < _LONG else short(number)


def _step(step: StepFacts) -> Table:
    from rich.table import Table

    table = Table()
    for name in ("rank", "micro-batches", "tokens", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for rank in range(min(len(step.rank_tokens), _RANKS_SHOWN)):
        table.add_row(
            str(rank),
            str(step.rank_micro_batches[rank]),
            f"{step.rank_tokens[rank]:,}",
            f"{step.rank_time_s[rank]:.3g}",
        )
    if len(step.rank_tokens) > _RANKS_SHOWN:
        table.add_row(f"... {len(step.rank_tokens) - _RANKS_SHOWN} more", "", "", "")
    return table
