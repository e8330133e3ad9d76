"""The heaviest micro-batches of an epoch, found by planning it, to be run before the epoch begins."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from balancer.topology import Topology
from loaders.balanced import Balanced
from loaders.batches.batch import Batch
from loaders.batches.device import one_ahead
from loaders.batches.reader import Reader
from loaders.batches.shares import Share
from loaders.batches.weights import count_labels
from loaders.catalog import media_of
from loaders.planning.step import PlannedStep, Planning
from loaders.state import Cursor
from packing.table import SampleTable

MEASURES = ("tokens", "samples", "time")
"""What a micro-batch may be heavy by, beside the units of a phase."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HeavyBatch:
    """A micro-batch, and what it asks of each of its ranks."""

    step: int
    """Number of the step within its epoch."""
    ranks: range
    """Data ranks that compute it."""
    slot: int
    tokens: int
    """Tokens of each rank's shard, alignment padding included."""
    num_samples: int
    """Samples and pieces."""
    time_s: float
    """Predicted seconds of its language model on each rank."""
    units: Mapping[str, int]
    """Patches and frames of the whole micro-batch, by phase: its ranks all have the features."""
    table: SampleTable
    """The samples."""

    def weight(self, by: str) -> float:
        """How heavy it is by one of `MEASURES`, or by a phase."""
        own = {"tokens": self.tokens, "samples": self.num_samples, "time": self.time_s}
        return float(own[by] if by in own else self.units[by])


def heaviest(
    planning: Planning, begin: Cursor, *, count: int, by: str = "tokens", steps: int | None = None
) -> list[HeavyBatch]:
    """The ``count`` heaviest micro-batches of an epoch, heaviest first; ties as they come.

    Args:
        planning: of the loader.
        begin: of the epoch.
        count: how many.
        by: ``"tokens"``, ``"samples"``, ``"time"``, or a phase (``"vision"``).
        steps: look at the first so many steps; ``None``: at all.

    Cost: plans the epoch's steps, one after another, without reading anything: about 1 ms a step.

    Raises:
        ValueError: a measure that there is not.
    """
    known = [*MEASURES, *sorted({name for one in planning.steps.catalogs for name in one.phases})]
    if by not in known:
        raise ValueError(f"by must be one of {', '.join(known)}, got {by!r}.")
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count!r}.")
    found = (
        heavy
        for index, planned in enumerate(islice(planning.epoch(begin), steps))
        for heavy in _batches(planned, index)
    )
    return heapq.nlargest(count, found, key=lambda heavy: heavy.weight(by))


def _batches(planned: PlannedStep, index: int) -> Iterator[HeavyBatch]:
    batches, table = planned.plan.micro_batches, planned.table
    for m in range(len(batches)):
        first, degree = int(batches.first_rank[m]), int(batches.cp_degree[m])
        samples = batches.samples(m)
        yield HeavyBatch(
            step=index,
            ranks=range(first, first + degree),
            slot=int(batches.slot[m]),
            tokens=int(batches.tokens[m]) // degree,
            num_samples=int(samples.size),
            time_s=float(batches.cost_s[m]),
            units={name: int(units[samples].sum()) for name, units in table.phases.items()},
            table=table.take(samples),
        )


def rehearsed(owner: Balanced, heavy: Sequence[HeavyBatch]) -> Iterator[Batch]:
    """Batches of one rank in a rehearsal, read in this process.

    Raises:
        RuntimeError: encoders have an assignment of their own, so a micro-batch is not run by itself.
    """
    reader = owner.reader
    if not isinstance(reader, Reader):
        raise RuntimeError('rehearse plays one micro-batch at a time, so not with assignment="separate".')
    owner.make_groups()
    topology = owner.planning.topology
    shares = rehearsal_shares(heavy, owner.planning, topology=topology, rank=owner.rank)
    batches = _read(owner, reader, shares)
    return batches if owner.mover is None else one_ahead(batches, owner.mover)


def _read(owner: Balanced, reader: Reader, shares: Iterator[Share]) -> Iterator[Batch]:
    for share in shares:
        batch = owner.attach(reader[share].to_batch())
        if not owner.knows_loss_tokens:
            count_labels([batch], owner.planning.topology.ranks)
        yield batch


def rehearsal_shares(
    heavy: Sequence[HeavyBatch], planning: Planning, *, topology: Topology, rank: int
) -> Iterator[Share]:
    """Work of ``rank`` when all groups of ranks run each of these micro-batches at once, step after step.

    Ranks outside of any group run a dummy.
    """
    for number, one in enumerate(heavy):
        degree = len(one.ranks)
        starts = topology.group_starts(degree).tolist()
        mine = next((start for start in starts if start <= rank < start + degree), None)
        table = one.table if mine is not None else one.table.take(np.zeros(0, np.int64))
        kinds = media_of(planning.steps.catalogs, one.table) if planning.fill_media and mine is None else {}
        yield Share(
            step=number,
            slot=0,
            last_in_step=True,
            cp_degree=1 if mine is None else degree,
            cp_rank=0 if mine is None else rank - mine,
            first_rank=rank if mine is None else mine,
            num_ranks=topology.ranks,
            step_loss_tokens=int(one.table.num_loss_tokens.sum()) * len(starts),
            step_samples=int(np.count_nonzero(one.table.num_loss_tokens)) * len(starts),
            source=table.source,
            row=table.row,
            start=table.start,
            num_tokens=table.num_tokens,
            num_loss_tokens=table.num_loss_tokens,
            fillers=tuple(kind for kind, present in kinds.items() if present.any()),
        )
