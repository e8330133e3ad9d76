"""How `evenload inspect` says what it found: as tables or as JSON."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from loaders.packing_job.progress import short
from loaders.planning.inspection import PERCENTILES, Inspection, SourceFacts, StepFacts
from loaders.planning.rehearsal import HeavyBatch

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_RANKS_SHOWN = 16
_ORIGINS_SHOWN = 3


def as_json(found: Inspection) -> dict[str, Any]:
    """Everything that the tables show, and the rest, as plain data."""
    plain = {
        field.name: getattr(found, field.name)
        for field in fields(found)
        if field.name not in ("sources", "steps", "worst")
    }
    return {
        **plain,
        "sources": [_source_numbers(source) for source in found.sources],
        "steps": [asdict(step) for step in found.steps],
        "worst": [_heavy_numbers(heavy, found) for heavy in found.worst],
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
    _say(
        console,
        f"An epoch has {found.steps_in_epoch:,} steps on {found.ranks} ranks of {found.max_tokens:,} "
        f"tokens; shares are of the first {found.looked_at:,} samples.",
    )
    for step in found.steps:
        sources = ", ".join(f"{count:,} {name}" for name, count in step.by_source.items() if count)
        _say(console, f"\nStep {step.step}: {step.samples:,} samples ({sources}), {step.tokens:,} tokens")
        console.print(_step(step))
        degrees = ", ".join(f"{count} of degree {degree}" for degree, count in step.cp_degrees.items())
        _say(
            console,
            f"micro-batches: {degrees}; fill {step.fill:.1%}, imbalance {step.imbalance:.3f}, "
            f"gap {step.gap:.2%}, predicted {step.time_s:.3g} s",
        )
    if found.worst:
        _say(console, "\nHeaviest micro-batches of the epoch")
        console.print(_worst(found))


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False)


def _sources(found: Inspection) -> Table:
    from rich.table import Table

    table = Table()
    for name in ("source", "rows", "tokens", *(f"p{at}" for at in PERCENTILES), "longest"):
        table.add_column(name, justify="left" if name == "source" else "right")
    phases = sorted({phase for source in found.sources for phase in source.units})
    for name in (*phases, "samples", "tokens", "left out"):
        table.add_column(f"% of {name}" if name in ("samples", "tokens") else name, justify="right")
    for source in found.sources:
        left_out = [f"{count:,} {name}" for name, count in source.counts.items() if count]
        table.add_row(
            source.name,
            f"{source.rows:,}",
            short(source.tokens),
            *(f"{value:,}" for value in source.percentiles),
            f"{source.longest:,}",
            *(short(source.units.get(phase, 0)) for phase in phases),
            f"{source.sample_share:.1%}",
            f"{source.token_share:.1%}",
            ", ".join(left_out) or "-",
        )
    return table


def _step(step: StepFacts) -> Table:
    from rich.table import Table

    table = Table()
    for name in ("rank", "micro-batches", "tokens", "seconds"):
        table.add_column(name, justify="right")
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


def _worst(found: Inspection) -> Table:
    from rich.table import Table

    table = Table()
    for name in ("step", "ranks", "slot", "tokens a rank", "samples", "seconds", "longest samples"):
        table.add_column(name, justify="left" if name == "longest samples" else "right")
    for heavy in found.worst:
        by_length = heavy.table.num_tokens.argsort(kind="stable")[::-1][:_ORIGINS_SHOWN]
        origins = [
            f"{found.sources[heavy.table.source[at]].name} {heavy.table.row[at]} "
            f"({heavy.table.num_tokens[at]:,})"
            for at in by_length.tolist()
        ]
        last = heavy.ranks.stop - 1
        table.add_row(
            str(heavy.step),
            str(heavy.ranks.start) if last == heavy.ranks.start else f"{heavy.ranks.start}-{last}",
            str(heavy.slot),
            f"{heavy.tokens:,}",
            str(heavy.num_samples),
            f"{heavy.time_s:.3g}",
            ", ".join(origins),
        )
    return table
