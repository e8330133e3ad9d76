"""Which sample goes where: answered by planning the step anew, since a plan is a function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from balancer.plan import StepPlan
from loaders.planning.step import PlannedStep, Planning
from loaders.state import Cursor
from packing.table import SampleTable

LOOKED_AT = 1 << 16
"""Positions that are searched at a time."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepView:
    """One step of an epoch: its samples and the plan for them. Axis: S = samples or pieces."""

    index: int
    """Number of the step within its epoch."""
    table: SampleTable
    plan: StepPlan

    @property
    def sample_ids(self) -> NDArray[np.int64]:
        """[S, 2] Source and row."""
        return np.stack([self.table.source.astype(np.int64), self.table.row], axis=1)

    def ranks_of(self, piece: int) -> range:
        """Data ranks that compute a piece."""
        batches = self.plan.micro_batches
        m = self._micro_batch_of(piece)
        return range(int(batches.first_rank[m]), int(batches.first_rank[m] + batches.cp_degree[m]))

    def slot_of(self, piece: int) -> int:
        """Slot in which they do."""
        return int(self.plan.micro_batches.slot[self._micro_batch_of(piece)])

    def _micro_batch_of(self, piece: int) -> int:
        batches = self.plan.micro_batches
        place = int(np.flatnonzero(batches.order == piece)[0])
        return int(np.searchsorted(batches.offsets, place, side="right")) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Whereabouts:
    """One place where a sample, or a piece of it, is computed."""

    epoch: int
    step: int
    """Number of the step within its epoch."""
    ranks: tuple[int, ...]
    slot: int
    start: int
    """First token of the piece within its row."""


def step_of_epoch(planning: Planning, begin: Cursor, index: int) -> StepView:
    """The ``index``-th step of the epoch that begins at ``begin``, planned.

    Cost: one step where steps have equally many samples; else the steps before it are looked up, not planned.

    Raises:
        IndexError: the epoch has fewer steps.
    """
    steps = planning.steps
    wanted = begin.step + index
    cursor = begin
    if steps.samples is not None and index >= 0:
        cursor = replace(begin, position=index * steps.samples, step=wanted)
    while cursor.step < wanted and (found := steps.members(cursor)) is not None:
        cursor = found[1]
    planned: PlannedStep | None = planning.plan(cursor) if cursor.step == wanted else None
    if planned is None:
        raise IndexError(f"epoch {begin.epoch} has steps 0..{steps.count(begin) - 1}, asked for {index}.")
    return StepView(index=index, table=planned.table, plan=planned.plan)


def whereabouts(planning: Planning, begin: Cursor, source: int, row: int) -> list[Whereabouts]:
    """All places of a row in the epoch from ``begin``; none where it is dropped, empty or not drawn.

    Cost: a pass over the epoch's order (some 20 million positions a second), then one plan for each hit.
    """
    return [
        Whereabouts(
            epoch=begin.epoch,
            step=view.index,
            ranks=tuple(view.ranks_of(piece)),
            slot=view.slot_of(piece),
            start=int(view.table.start[piece]),
        )
        for view in _steps_with(planning, begin, source, row)
        for piece in np.flatnonzero((view.table.source == source) & (view.table.row == row)).tolist()
    ]


def _steps_with(planning: Planning, begin: Cursor, source: int, row: int) -> Iterator[StepView]:
    steps = planning.steps
    if steps.samples is None:
        cursor = begin
        while (members := steps.members(cursor)) is not None:
            table, behind = members
            if np.any((table.source == source) & (table.row == row)):
                yield step_of_epoch(planning, begin, cursor.step - begin.step)
            cursor = behind
        return
    size = steps.order.size(begin.epoch)
    if steps.drop_last:
        size -= size % steps.samples
    indices: set[int] = set()
    for start in range(0, size, LOOKED_AT):
        positions = np.arange(start, min(start + LOOKED_AT, size))
        sources, places = steps.order.locate(begin.epoch, positions)
        mine = np.flatnonzero(sources == source)
        hits = mine[steps.catalogs[source].rows(places[mine]) == row]
        indices.update((positions[hits] // steps.samples).tolist())
    for index in sorted(indices):
        yield step_of_epoch(planning, begin, index)
