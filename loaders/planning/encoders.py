"""What a balanced loader does for models with encoders: plans of all phases, and room for filler media."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from balancer.phases import Phase, plan_phases
from balancer.plan import StepPlan
from loaders.mixture import Mixture
from loaders.sources.base import Source
from packing.table import SampleTable

LOSS_TOKENS = "loss_tokens"
"""A phase that every source has: the labels that count, for those who want ranks to have equally many."""


def encoders_too(phases: Mapping[str, Phase | Any]) -> Callable[..., StepPlan]:
    """A planner that weighs each sample's patches and frames beside its tokens, on the rank that reads it."""

    def plan(table: SampleTable, **options: Any) -> StepPlan:
        return plan_phases(_with_loss_tokens(table, phases), phases=phases, mode="joint", **options).language

    return plan


def _with_loss_tokens(table: SampleTable, wanted: Collection[str]) -> SampleTable:
    if LOSS_TOKENS not in wanted or LOSS_TOKENS in table.phases:
        return table
    return replace(table, phases={**table.phases, LOSS_TOKENS: table.num_loss_tokens})


def units_limits(phases: Mapping[str, Phase | Any] | None) -> dict[str, int]:
    """Patches and frames that a rank can hold in one micro-batch, of the phases that have such a limit."""
    limits = {name: getattr(phase, "max_units", None) for name, phase in (phases or {}).items()}
    return {name: most for name, most in limits.items() if most is not None}


def filler_sizes(dataset: Any, collate_fn: Any) -> dict[str, int]:
    """Tokens of the filler medium of each kind that the data has.

    Raises:
        ValueError: a ``collate_fn`` lays out the batch, so that no sequence can be added.
    """
    sources = [leaf.source for leaf in dataset.leaves()] if isinstance(dataset, Mixture) else [dataset]
    sizes = {
        kind: int(rows.input_ids.size)
        for source in sources
        if isinstance(source, Source)
        for kind, rows in source.fillers().items()
    }
    if sizes and collate_fn is not None:
        raise ValueError(
            "fill_media needs the loader's own layout: with collate_fn, add media to batches that have none "
            "yourself, and pass fill_media=False."
        )
    return sizes


def filler_room(sizes: Mapping[str, int]) -> int:
    """Tokens of a rank's budget that fillers may take, one of each kind.

    A sequence of k tokens, padded for degree d, takes at most k + 1 tokens of each rank.
    """
    return sum(size + 1 for size in sizes.values())
