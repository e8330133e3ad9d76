"""How a step is planned: its samples, who computes what, and what is added so that all ranks run alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from balancer.phases import PhasePlan
from balancer.plan import StepPlan
from balancer.topology import Topology
from loaders.catalog import media_of
from loaders.media.presence import Fillers, fillers_of
from loaders.order.steps import Steps
from loaders.planning.grouping import media_sets, plan_by_media
from loaders.planning.separate import Separate, separate_step
from loaders.state import Cursor
from packing.table import SampleTable

Planner = Callable[[SampleTable], StepPlan]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PlannedStep:
    """One optimizer step: its samples, who computes what, and where the next step starts."""

    number: int
    """Number of the step, over all epochs."""
    table: SampleTable
    plan: StepPlan
    plan_s: float
    behind: Cursor
    """Where the order stands when the step is done."""
    fillers: Fillers | None = None
    """Media added so that all ranks run the same encoders."""
    separate: Separate | None = None
    """The encoders' own plans and what travels; ``None``: samples are encoded where they are read."""

    @property
    def encoders(self) -> Mapping[str, StepPlan]:
        """Plans of encoders that have their own."""
        return {} if self.separate is None else self.separate.plan.encoders


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Planning:
    """How a step is planned: everything that all ranks must share."""

    steps: Steps
    topology: Topology
    planner: Planner
    """Plans a step's samples."""
    options: dict[str, Any]
    """Its keyword arguments, beside the topology: those of ``plan_step``."""
    fill_media: bool = False
    """Whether ranks without media that others have are given the smallest ones."""
    pad_slots: bool = False
    """Whether all batches of a slot are padded to its largest."""
    separate_phases: Callable[..., PhasePlan] | None = None
    """Plans the encoders' work by itself, in the place of ``planner``."""
    group_media: bool = False
    """Whether samples with the same kinds of media are planned by themselves."""

    @property
    def every_slot(self) -> bool:
        """Whether all ranks run all slots also where they meet once a step: their number was asked for."""
        return self.options.get("micro_batches") is not None or self.options.get("slots_multiple_of", 1) > 1

    def plan(self, cursor: Cursor) -> PlannedStep | None:
        """The step at ``cursor``, planned; ``None`` at the end of the epoch."""
        found = self.steps.members(cursor)
        if found is None:
            return None
        table, behind = found
        started = time.perf_counter()
        media = media_of(self.steps.catalogs, table) if self.fill_media or self.group_media else {}
        separate = None
        if self.separate_phases is not None:
            phases = self.separate_phases(table, topology=self.topology, **self.options)
            separate = separate_step(phases, table, self.steps.catalogs)
            plan = separate.plan.language
        elif self.group_media:
            plan = plan_by_media(self.planner, table, media_sets(media, len(table)))
        else:
            plan = self.planner(table)
        plan_s = time.perf_counter() - started
        fillers = fillers_of(plan, media) if self.fill_media else None
        return PlannedStep(
            number=cursor.step,
            table=table,
            plan=plan,
            plan_s=plan_s,
            behind=behind,
            fillers=fillers,
            separate=separate,
        )

    def epoch(self, cursor: Cursor) -> Iterator[PlannedStep]:
        """All steps of the epoch from ``cursor`` on."""
        while (planned := self.plan(cursor)) is not None:
            yield planned
            cursor = planned.behind
