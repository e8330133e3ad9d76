"""Which ranks run an encoder only because others do, and the minimal media they run it on.

Where parameters are sharded, an encoder's layers are gathered by all ranks together: a rank whose micro-batch
has no picture would leave the others waiting. It gets the smallest medium there is, as a sequence of its own
behind its samples, with no label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.plan import StepPlan
from loaders.media.config import MediaKind, MediaRules
from loaders.media.decode import Planned, blank, position_span
from loaders.media.expand import expand
from loaders.media.positions import position_rows
from loaders.media.rules import HOP, SPECTRUM_RATE, PatchGrid, TokensPerSecond, VideoGrid, WhisperFrames
from loaders.sources.base import Rows


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Fillers:
    """Media added to one step. Axis: F = them."""

    rank: NDArray[np.int64]
    """[F] First rank of the group that runs it."""
    slot: NDArray[np.int64]
    """[F]"""
    kind: tuple[str, ...]
    """F names."""

    def of(self, rank: int, slot: int) -> tuple[str, ...]:
        """Kinds that the group beginning at ``rank`` runs in ``slot`` for the others' sake."""
        mine = np.flatnonzero((self.rank == rank) & (self.slot == slot))
        return tuple(self.kind[at] for at in mine.tolist())

    def __len__(self) -> int:
        return int(self.rank.size)


def fillers_of(plan: StepPlan, present: Mapping[str, NDArray[np.bool_]]) -> Fillers:
    """Where media must be added so that all ranks run the same encoders when they meet.

    Args:
        plan: the step's.
        present: [S] by kind, whether a sample has such media; S in the numbering of ``plan.order``.

    Under ``sync="micro_batch"`` ranks meet in every slot: a kind that any micro-batch of the slot has, all
    have. Under ``"step"`` they meet in each rank's last micro-batch: there all have every kind of the
    step. A kind that nobody has is added nowhere.

    Cost: O(samples + ranks x slots).
    """
    batches = plan.micro_batches
    every_slot = plan.sync == "micro_batch"
    rank_of, slot_of, kinds = [], [], []
    for kind in sorted(present):
        sample_has = present[kind][batches.order]
        has = np.zeros(len(batches), np.bool_)
        filled = np.diff(batches.offsets) > 0
        if sample_has.size:
            has[filled] = np.logical_or.reduceat(sample_has, batches.offsets[:-1][filled])
        if not has.any():
            continue
        for first, slot in _meetings(plan, has if every_slot else None):
            mine = np.flatnonzero((batches.first_rank == first) & (batches.slot == slot))
            if not has[mine].any():
                rank_of.append(first)
                slot_of.append(slot)
                kinds.append(kind)
    return Fillers(rank=np.array(rank_of, np.int64), slot=np.array(slot_of, np.int64), kind=tuple(kinds))


def _meetings(plan: StepPlan, has: NDArray[np.bool_] | None) -> list[tuple[int, int]]:
    """(first rank of a group, slot) of everything that runs where ranks meet; idle ranks are groups of one.

    has: [M] whether a micro-batch has the kind, where ranks meet in every slot; ``None``: at the end only.
    """
    batches = plan.micro_batches
    found = []
    if has is not None:
        for slot in np.unique(batches.slot[has]).tolist():
            leaders, idle = _groups(plan, np.flatnonzero(batches.slot == slot))
            found += [(rank, slot) for rank in (*leaders, *idle)]
        return found
    last = np.full(plan.ranks, -1, np.int64)
    for m in range(len(batches)):
        group = slice(int(batches.first_rank[m]), int(batches.first_rank[m] + batches.cp_degree[m]))
        last[group] = np.maximum(last[group], batches.slot[m])
    for m in range(len(batches)):
        first, degree = int(batches.first_rank[m]), int(batches.cp_degree[m])
        if np.any(last[first : first + degree] == batches.slot[m]):
            found.append((first, int(batches.slot[m])))
    return found + [(rank, 0) for rank in np.flatnonzero(last < 0).tolist()]


def _groups(plan: StepPlan, members: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """First ranks of the groups that run these micro-batches, and the ranks that run none of them."""
    batches = plan.micro_batches
    busy = np.zeros(plan.ranks, np.bool_)
    for m in members.tolist():
        busy[batches.first_rank[m] : batches.first_rank[m] + batches.cp_degree[m]] = True
    return batches.first_rank[members].tolist(), np.flatnonzero(~busy).tolist()


def smallest(kind: str, of: MediaKind) -> Planned:
    """The least that an encoder can be run on."""
    rule = of.rule
    if isinstance(rule, PatchGrid | VideoGrid):
        units = rule.merge * rule.merge
        side = float(rule.merge * rule.patch)
        grid = (1, rule.merge, rule.merge)
        return Planned(kind=kind, index=0, header=(side, side, 1.0, 1.0), tokens=1, units=units, grid=grid)
    if isinstance(rule, WhisperFrames | TokensPerSecond):
        frames = 2 * rule.pool if isinstance(rule, WhisperFrames) else 1
        header = (float(frames * HOP), float(SPECTRUM_RATE), 1.0, 0.0)
    else:
        header = (28.0, 28.0, 0.0, 0.0)
    first, second = (np.array([int(value)], np.int64) for value in header[:2])
    counts = rule.count(first, second)
    return Planned(
        kind=kind,
        index=0,
        header=header,
        tokens=int(counts.tokens[0]),
        units=int(counts.units[0]),
        grid=tuple(counts.grid[0].tolist()),
    )


def filler_rows(rules: MediaRules) -> dict[str, Rows]:
    """For each kind a sequence of the smallest medium alone, none of whose tokens is a label."""
    return {kind: _filler(kind, of, rules) for kind, of in rules.kinds().items()}


def _filler(kind: str, of: MediaKind, rules: MediaRules) -> Rows:
    planned = smallest(kind, of)
    before, behind = ([], []) if of.wrap is None else ([of.wrap[0]], [of.wrap[1]])
    ids = np.array([*before, of.token, *behind], np.int64)
    placeholders = {kind: of.placeholder}
    sample = expand(ids, np.full(ids.size, -100, np.int64), placeholders, {kind: [planned.tokens]})
    columns: dict[str, list[Any]] = {
        key: [value] for key, value in blank(planned, rules).items() if key in rules.joins()
    }
    start = int(sample.starts[kind][0])
    if rules.positions != "1d":
        span = position_span(planned, start, rules)
        spans = [] if span is None else [span]
        rows = position_rows(rules.positions, sample.input_ids.size, spans, advance=rules.advance)
        columns["position_ids"] = [rows]
    if rules.indices:
        mine = sample.input_ids == of.token
        columns[f"{kind}_index"] = [np.where(mine, np.cumsum(mine) - 1, -1)[None]]
    return Rows(
        input_ids=sample.input_ids,
        offsets=np.array([0, sample.input_ids.size], np.int64),
        labels=sample.labels,
        columns=columns,
    )
