"""The balanced mode over a stream: each rank has one of its own, and steps that all ranks take together.

Samples stay on their rank, whose window is divided into steps of equal time (`stream_window`), or they are
exchanged: all streams are planned as one (`stream_union`). Streams are read, and messages sent, in the
training thread when a step is needed: a thread that went ahead would, where a loop is left half-way, leave
the ranks in different messages. Worker processes read ahead instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from balancer import StepPlan, Topology
from balancer.runtime import ContextGroups, HostGroup
from loaders.batch import Batch
from loaders.media.quarantine import Quarantine
from loaders.metrics import Metrics
from loaders.reader import Reader
from loaders.stream_cursor import Place, StreamCursor
from loaders.stream_intake import Held, Intake
from loaders.stream_union import StepSize, UnionSteps
from loaders.stream_window import Dividing, StreamStep, WindowSteps

WINDOW = 4
"""Steps of a window by default."""


class Stepping(Protocol):
    """How streams become steps."""

    def steps(self, cursor: StreamCursor, host: HostGroup) -> Iterator[StreamStep]:
        """Steps from ``cursor`` to the end of the epoch, equally many on all ranks."""
        ...

    def counters(self) -> dict[str, int]:
        """What became of the samples so far."""
        ...


class Streaming:
    """State of a loader over a stream: the cursor, the counters, and what makes steps.

    Args:
        place: the stream.
        stepping: makes its steps.
        reader: makes batches of them.
        metrics: counters of given-out steps.
        host: makes the ranks' `HostGroup` when the first iteration starts, on all ranks alike.
        groups: the same for the process groups of context parallelism; may give ``None``.
        pin: whether batches are to lie in page-locked memory.
        count: steps of an epoch, for streams that know their length.
    """

    def __init__(
        self,
        place: Place,
        *,
        stepping: Stepping,
        reader: Reader,
        metrics: Metrics,
        host: Callable[[], HostGroup],
        groups: Callable[[], ContextGroups | None],
        pin: bool,
        count: Callable[[], int],
    ) -> None:
        self.place = place
        self.stepping = stepping
        self.reader = reader
        self.metrics = metrics
        self.count = count
        self.pin = pin
        self._make_host, self._make_groups = host, groups
        self._host: HostGroup | None = None
        self._groups: ContextGroups | None = None
        self.cursor = StreamCursor()
        self.resumes = True
        """Whether the next iteration goes on at the cursor instead of starting an epoch."""
        self.latest: object | None = None
        """Mark of the iteration that moves the cursor."""
        self.last_plan: StepPlan | None = None

    def start(self) -> Iterator[Batch]:
        """Iterate from a loaded state, or else over a new epoch. Collective the first time."""
        if self._host is None:
            self._host, self._groups = self._make_host(), self._make_groups()
        if not self.resumes:
            self.cursor = StreamCursor(epoch=self.cursor.epoch + 1, step=self.cursor.step)
        self.resumes = False
        self.place.begin(self.cursor.epoch)
        if self.cursor.stream is None and not self.cursor.drawn:
            self.cursor = replace(self.cursor, stream=self.place.state())
        self.latest = mark = object()
        return self._run(self.cursor, mark, self._host)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration run over ``epoch``; a state loaded in the middle of it is kept."""
        if not (self.resumes and epoch == self.cursor.epoch):
            self.load(StreamCursor(epoch=int(epoch), step=self.cursor.step))

    def load(self, cursor: StreamCursor) -> None:
        """Let the next iteration go on at ``cursor``."""
        self.cursor, self.resumes, self.latest = cursor, True, None

    def _run(self, cursor: StreamCursor, mark: object, host: HostGroup) -> Iterator[Batch]:
        """Batches of this rank until all streams are at their end; then the next epoch is due."""
        steps = self.stepping.steps(cursor, host)
        number = cursor.step
        while True:
            began = time.perf_counter()
            step = next(steps, None)
            if step is None:
                break
            batches = self._batches(step, number, host)
            self.last_plan = step.plan
            for batch in batches:
                self.metrics.wait_s += time.perf_counter() - began
                self.metrics.batches += 1
                self.metrics.dummies += batch.place.is_dummy
                if batch.place.last_in_step:
                    self.metrics.add_step(step.plan, step.table, step.plan_s)
                    self.metrics.imbalance += step.imbalance - step.plan.imbalance
                    number = step.behind.step
                    if self.latest is mark:
                        self.cursor = step.behind
                yield batch
                began = time.perf_counter()
        if self.latest is mark:
            self.latest = None
            self.cursor = StreamCursor(epoch=self.cursor.epoch + 1, step=number)
            self.resumes = True

    def _batches(self, step: StreamStep, number: int, host: HostGroup) -> list[Batch]:
        """The whole step at once, so that a ``collate_fn`` that fails is known to all before they run it."""
        batches, error = [], None
        try:
            for share in step.shares:
                batch = self.reader[share].to_batch()
                batches.append(batch.pin_memory() if self.pin else batch)
        except Exception as failed:
            error = failed
        host.raise_together(error, f"step {number}, making batches")
        if self._groups is not None:
            for batch in batches:
                if batch.place.cp_degree > 1:
                    self._groups.attach(batch)  # type: ignore[arg-type]  # a Batch has the names it is asked for
        return batches

    def report(self, names: Sequence[str]) -> dict[str, Any]:
        """`Metrics.report`, with what became of the samples: of all ranks with exchange, else of this one."""
        return self.metrics.report(names, {}) | self.stepping.counters()


def open_stream(
    dataset: Any,
    *,
    samples: Callable[[], Iterable[Any]],
    in_process: bool,
    exchange: bool,
    size: StepSize,
    window: int,
    planner: Callable[..., StepPlan],
    options: Mapping[str, Any],
    capacity: int,
    pad_slots: bool,
    oversize: str,
    length: Any,
    phases: Sequence[str],
    quarantine: Quarantine | None,
    collate_fn: Any,
    pad_to: Sequence[int],
    topology: Topology,
    rank: int,
    drop_last: bool,
    pin: bool,
    setup: str,
    host: Callable[[], HostGroup],
    groups: Callable[[], ContextGroups | None],
) -> Streaming:
    """A stream as a balanced loader reads it; arguments as the loader and `UnionSteps` have them."""
    name = type(dataset).__name__
    place = Place(dataset, samples, in_process=in_process)
    intake = Intake(
        name, capacity=capacity, oversize=oversize, quarantine=quarantine, length=length, phases=phases
    )
    sources = [intake.source]
    stepping: Stepping
    if exchange:
        sources = [Held(f"{name} of rank {other}") for other in range(topology.ranks)]
        sources[rank] = intake.source
        stepping = UnionSteps(
            place,
            intake,
            sources,
            size=size,
            planner=planner,
            options=options,
            topology=topology,
            drop_last=drop_last,
            pad_slots=pad_slots,
            setup=setup,
        )
    else:
        assert size.samples is not None
        dividing = Dividing(
            batch_size=size.samples // topology.ranks, window=window, planner=planner, options=options
        )
        stepping = WindowSteps(place, intake, dividing=dividing, drop_last=drop_last)
    return Streaming(
        place,
        stepping=stepping,
        reader=Reader(sources, capacity=capacity, collate_fn=collate_fn, pad_to=pad_to),
        metrics=Metrics.of(int(options["max_tokens"]), 1),
        host=host,
        groups=groups,
        pin=pin and torch.cuda.is_available(),
        count=lambda: _count(dataset, size, topology.ranks, drop_last),
    )


def _count(dataset: Any, size: StepSize, ranks: int, drop_last: bool) -> int:
    """Steps of an epoch, if all ranks' streams are as long as this one's.

    Raises:
        TypeError: the stream has no length, or steps are counted in tokens.
    """
    if size.samples is None or not hasattr(dataset, "__len__"):
        why = "steps end by their tokens" if hasattr(dataset, "__len__") else "the stream itself has none"
        raise TypeError(
            f"a loader over {type(dataset).__name__!r} has no len(): {why}. Count steps by batch.step, and "
            "give schedules a number of steps or tokens."
        )
    samples = len(dataset) * ranks
    return samples // size.samples if drop_last else -(-samples // size.samples)


def as_it_is(sample: Any) -> Any:
    """No collation: samples come from the workers one by one."""
    return sample
