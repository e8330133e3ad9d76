"""Streams whose samples stay on their rank: a bounded window is divided into steps of equal time.

Ranks' steps so come together without moving a sample. What a step needs to know of the other ranks (labels,
slots, who has samples left) is one message of 48 bytes from each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer import StepPlan, Topology, plan_step
from balancer.runtime import HostGroup
from loaders.batches.shares import Share, shares_of_rank
from loaders.streams.cursor import Place, StreamCursor
from loaders.streams.intake import Intake
from packing.table import SampleTable

NANOSECONDS = 1e9


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StreamStep:
    """One step, as this rank runs it."""

    shares: list[Share]
    """This rank's micro-batches, at least one."""
    table: SampleTable
    """The samples that ``plan`` divides."""
    plan: StepPlan
    plan_s: float
    imbalance: float
    """Slowest rank's predicted time / mean, over all ranks."""
    behind: StreamCursor
    """Where the stream stands when the step is done."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Dividing:
    """How a window becomes steps."""

    batch_size: int
    """Samples of a step on this rank, on average over the window."""
    window: int
    """Steps of a window."""
    planner: Callable[..., StepPlan] = plan_step
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the planner."""

    def steps(self, table: SampleTable, *, drop_last: bool) -> list[NDArray[np.int64]]:
        """Rows of each step, in stream order: steps of nearly equal predicted time, pieces kept together.

        As many steps as without a window, none of them empty. With ``drop_last`` the samples behind the last
        full step are left out.
        """
        size = self.batch_size
        begins = np.flatnonzero(table.start == 0)  # [samples] first row of each
        count = begins.size // size if drop_last else -(-begins.size // size)
        bounds = np.append(begins, len(table))
        rows = int(bounds[min(count * size, begins.size)])
        whole = table.take(np.arange(rows))
        if count <= 1:
            return [np.arange(rows)] * count
        step_of = np.empty(rows, np.int64)
        plan = self.planner(whole, topology=Topology(ranks=count), **{**self.options, "sync": "step"})
        for step in range(count):
            for m in plan.for_rank(step):
                step_of[plan.micro_batches.samples(int(m))] = step
        sample = np.cumsum(whole.start == 0) - 1
        step_of = step_of[begins[sample]]  # all pieces of a sample follow the first
        steps = [np.flatnonzero(step_of == step) for step in range(count)]
        if all(step.size for step in steps):
            return steps
        return [np.flatnonzero(sample // size == step) for step in range(count)]

    def plan(self, table: SampleTable) -> StepPlan:
        """Micro-batches of one step on this rank."""
        return self.planner(table, topology=Topology(ranks=1), **self.options)


class WindowSteps:
    """Steps of this rank's own stream; with the other ranks it only agrees how many there are.

    Args:
        place: the stream.
        intake: looks at its samples and holds those of a window.
        dividing: how a window becomes steps.
        drop_last: end with the first stream that does, and without its last, smaller step.
    """

    def __init__(self, place: Place, intake: Intake, *, dividing: Dividing, drop_last: bool) -> None:
        self.place, self.intake = place, intake
        self.dividing, self.drop_last = dividing, drop_last

    def steps(self, cursor: StreamCursor, host: HostGroup) -> Iterator[StreamStep]:
        """Steps until all streams are at their end. Collective over the ranks of ``host``."""
        own = self._own(cursor)
        none = nothing(self.intake.phases)
        number = cursor.step
        while True:
            table, plan, plan_s, error = None, self.dividing.plan(none), 0.0, None
            try:
                table, cursor = next(own, (None, cursor))
                if table is not None:
                    started = time.perf_counter()
                    plan = self.dividing.plan(table)
                    plan_s = time.perf_counter() - started
            except Exception as failed:  # the others are waiting to hear of this step
                error = failed
            told = self._told(table, plan, number, host, error)
            if told is None:
                return
            shares, imbalance = told
            cursor, number = replace(cursor, step=number + 1), number + 1
            yield StreamStep(
                shares=shares,
                table=none if table is None else table,
                plan=plan,
                plan_s=plan_s,
                imbalance=imbalance,
                behind=cursor,
            )

    def counters(self) -> dict[str, int]:
        """What became of the samples of this rank's stream."""
        return self.intake.counters()

    def _own(self, cursor: StreamCursor) -> Iterator[tuple[SampleTable, StreamCursor]]:
        """Samples of this rank's steps, with the cursor behind each."""
        stream = self.place.open(cursor)
        self.intake.drawn = cursor.drawn
        if cursor.ended:
            return
        wanted = self.dividing.batch_size * self.dividing.window
        skip = cursor.within
        while True:
            table = self.intake.take(stream, wanted)
            ended = np.count_nonzero(table.start == 0) < wanted
            after = replace(
                cursor, drawn=self.intake.drawn, within=0, stream=self.place.state(), ended=bool(ended)
            )
            steps = self.dividing.steps(table, drop_last=self.drop_last)
            for number, rows in enumerate(steps):
                if number < skip:
                    continue
                last = number == len(steps) - 1
                yield table.take(rows), after if last else replace(cursor, within=number + 1)
            if ended:
                return
            cursor, skip = after, 0

    def _told(
        self,
        table: SampleTable | None,
        plan: StepPlan,
        number: int,
        host: HostGroup,
        error: Exception | None,
    ) -> tuple[list[Share], float] | None:
        """Shares of this rank and the imbalance over all ranks; ``None`` where no rank has a step."""
        none = nothing(self.intake.phases)
        samples = none if table is None else table
        shares = shares_of_rank(plan, samples, rank=0, step=number)
        told = host.gather_ints(  # [R, 6]
            [
                error is not None,
                table is not None,
                int(samples.num_loss_tokens.sum()),
                len(shares),
                int(plan.time_s * NANOSECONDS),
                int(np.count_nonzero(samples.num_loss_tokens)),
            ]
        )
        if told[:, 0].any():
            host.tell_failure(error, f"step {number}, reading a stream")
        alive = told[:, 1] > 0
        if not alive.any() or (self.drop_last and not alive.all()):
            return None
        times = told[:, 4]
        slots = int(told[:, 3].max()) if plan.sync == "micro_batch" else len(shares)
        idle = shares_of_rank(self.dividing.plan(none), none, rank=0, step=number)
        shares += idle * (slots - len(shares))
        aligned = [
            replace(
                share,
                slot=slot,
                last_in_step=slot == slots - 1,
                first_rank=host.rank,
                num_ranks=host.size,
                step_loss_tokens=int(told[:, 2].sum()),
                step_samples=int(told[:, 5].sum()),
            )
            for slot, share in enumerate(shares)
        ]
        return aligned, float(times.max() / times.mean()) if times.any() else 1.0


def identity_of_windows(batch_size: int, window: int, max_tokens: int) -> dict[str, Any]:
    """What a state within a window rests on: all that decides how it is divided, but for costs."""
    return {"batch_size": batch_size, "window": window, "max_tokens": max_tokens}


def nothing(phases: tuple[str, ...] = ()) -> SampleTable:
    """A table without samples."""
    none = np.zeros(0, np.int64)
    return replace(SampleTable.from_lengths(none), phases=dict.fromkeys(phases, none))
