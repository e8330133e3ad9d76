"""What a balanced loader would do with its data: sources, shares, first steps, heaviest micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.planning.rehearsal import HeavyBatch
from loaders.planning.step import Planning
from loaders.planning.tracing import StepView
from loaders.state import Cursor

PERCENTILES = (50, 90, 99)
LOOKED_AT = 1 << 18
"""Positions of the order that shares are counted over; an epoch, where it is shorter."""
LONGEST = 3
"""Samples of a heavy micro-batch that are named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFacts:
    """One source, and its share of the order."""

    name: str
    path: str
    """What messages call it."""
    label: str
    """Its name, or in place of paths the first file's and how many more there are."""
    rows: int
    usable: int
    """Rows that are given out."""
    tokens: int
    """Of all rows, before anything is cut or dropped."""
    counts: Mapping[str, int]
    """Rows dropped, truncated, split and empty."""
    percentiles: tuple[int, ...]
    """Lengths at `PERCENTILES` of the rows that are not empty."""
    longest: int
    units: Mapping[str, int]
    """Patches and frames of all rows, by phase."""
    sample_share: float
    """Of the samples that the order gives out."""
    token_share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFacts:
    """One step's plan in numbers."""

    step: int
    samples: int
    tokens: int
    loss_tokens: int
    micro_batches: int
    slots: int
    cp_degrees: Mapping[int, int]
    """Micro-batches of each degree."""
    time_s: float
    gap: float
    imbalance: float
    fill: float
    by_source: Mapping[str, int]
    """Samples of each source."""
    rank_tokens: tuple[int, ...]
    """Tokens that each rank holds, over its micro-batches."""
    rank_time_s: tuple[float, ...]
    rank_micro_batches: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """All that `evenload inspect` tells."""

    ranks: int
    max_tokens: int
    steps_in_epoch: int
    looked_at: int
    """Positions that the shares are counted over."""
    sources: tuple[SourceFacts, ...]
    steps: tuple[StepFacts, ...]
    worst: tuple[HeavyBatch, ...]
    origins: tuple[tuple[tuple[str, int], ...], ...]
    """Of each of ``worst``, (file and row, tokens) of its longest samples."""
    cost: str
    """Where seconds come from."""


def inspect_loader(loader: Any, *, steps: int = 2, worst: int = 0, epoch: int = 0) -> Inspection:
    """Facts on a `DataLoader` with ``max_tokens``, found without reading a sample.

    Args:
        loader: the balanced loader.
        steps: how many first steps to plan.
        worst: how many of the heaviest micro-batches to look for, which plans the whole epoch.
        epoch: which epoch.
    """
    planning: Planning = loader.planning
    total = planning.steps.count(Cursor(epoch=epoch))
    views = [loader.step(index, epoch=epoch) for index in range(min(steps, total))]
    names = loader.source_names
    shares = _shares(planning, epoch)
    labels = _labels(names, [catalog.source.name for catalog in planning.steps.catalogs])
    heavy = tuple(loader.worst(worst, epoch=epoch)) if worst else ()
    return Inspection(
        ranks=planning.topology.ranks,
        max_tokens=planning.options["max_tokens"],
        steps_in_epoch=total,
        looked_at=min(planning.steps.order.size(epoch), LOOKED_AT),
        sources=tuple(
            _source(name, labels[number], catalog, shares[number])
            for number, (name, catalog) in enumerate(zip(names, planning.steps.catalogs, strict=True))
        ),
        steps=tuple(_step(view, names, planning.options["max_tokens"]) for view in views),
        worst=heavy,
        origins=tuple(_origins(one, planning) for one in heavy),
        cost=str(getattr(planning.options["cost"], "source", "")),
    )


def _labels(names: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Short names that tell the sources apart; names that a mixture gives stay as they are."""
    short = [_short(path) if name == path else name for name, path in zip(names, paths, strict=True)]
    return short if len(set(short)) == len(short) else list(names)


def _short(path: str) -> str:
    first, *more = path.split(", ")
    folders = first.replace("\\", "/").rstrip("/").split("/")
    last = "/".join(folders[-2:]) if "*" in folders[-1] else folders[-1]
    return f"{last} and {len(more):,} more" if more else last


def _origins(heavy: HeavyBatch, planning: Planning) -> tuple[tuple[str, int], ...]:
    table, catalogs = heavy.table, planning.steps.catalogs
    longest = table.num_tokens.argsort(kind="stable")[::-1][:LONGEST].tolist()
    return tuple(
        (catalogs[table.source[at]].source.origin(int(table.row[at])), int(table.num_tokens[at]))
        for at in longest
    )


def _source(name: str, label: str, catalog: Any, shares: tuple[float, float]) -> SourceFacts:
    lengths = catalog.lengths[catalog.lengths > 0]
    found = np.percentile(lengths, PERCENTILES, method="higher") if lengths.size else np.zeros(3)
    return SourceFacts(
        name=name,
        path=catalog.source.name,
        label=label,
        rows=int(catalog.lengths.size),
        usable=len(catalog),
        tokens=int(catalog.lengths.sum()),
        counts={key: value for key, value in catalog.counts.items() if key != "kept"},
        percentiles=tuple(int(value) for value in found),
        longest=int(lengths.max(initial=0)),
        units={phase: int(units.sum()) for phase, units in catalog.phases.items()},
        sample_share=shares[0],
        token_share=shares[1],
    )


def _shares(planning: Planning, epoch: int) -> list[tuple[float, float]]:
    """Of each source, the share of samples and of tokens in the order's first positions."""
    steps = planning.steps
    size = min(steps.order.size(epoch), LOOKED_AT)
    source, place = steps.order.locate(epoch, np.arange(size))
    samples = np.zeros(len(steps.catalogs), np.int64)
    tokens = np.zeros(len(steps.catalogs), np.int64)
    for number, catalog in enumerate(steps.catalogs):
        rows = catalog.rows(place[source == number])
        lengths: NDArray[np.int64] = catalog.lengths[rows]
        if catalog.oversize == "truncate":
            lengths = np.minimum(lengths, catalog.capacity)
        samples[number], tokens[number] = rows.size, lengths.sum()
    return list(
        zip((samples / max(samples.sum(), 1)).tolist(), (tokens / max(tokens.sum(), 1)).tolist(), strict=True)
    )


def _step(view: StepView, names: Sequence[str], max_tokens: int) -> StepFacts:
    plan, table = view.plan, view.table
    batches = plan.micro_batches
    whole = table.source[table.start == 0]
    by_rank = [plan.for_rank(rank) for rank in range(plan.ranks)]
    each = batches.tokens // batches.cp_degree
    degrees, counts = np.unique(batches.cp_degree, return_counts=True)
    return StepFacts(
        step=view.index,
        samples=int(whole.size),
        tokens=int(table.num_tokens.sum()),
        loss_tokens=int(table.num_loss_tokens.sum()),
        micro_batches=len(batches),
        slots=plan.num_slots,
        cp_degrees=dict(zip(degrees.tolist(), counts.tolist(), strict=True)),
        time_s=plan.time_s,
        gap=plan.gap,
        imbalance=plan.imbalance,
        fill=int(table.num_tokens.sum()) / max(int(batches.cp_degree.sum()) * max_tokens, 1),
        by_source=dict(zip(names, np.bincount(whole, minlength=len(names)).tolist(), strict=True)),
        rank_tokens=tuple(int(each[mine].sum()) for mine in by_rank),
        rank_time_s=tuple(plan.rank_time_s.tolist()),
        rank_micro_batches=tuple(int(mine.size) for mine in by_rank),
    )
