"""The balanced mode over a stream: each rank has one of its own, and steps that all ranks take together.

Samples stay on their rank, whose window is divided into steps of equal time (`window`), or they are
exchanged: all streams are planned as one (`union`). Streams are read, and messages sent, in the
training thread when a step is needed: a thread that went ahead would, where a loop is left half-way, leave
the ranks in different messages. Worker processes read ahead instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from balancer.runtime import ContextGroups, HostGroup
from loaders.batches.batch import Batch
from loaders.batches.reader import Reader
from loaders.metrics import Metrics
from loaders.standing import Standing
from loaders.streams.cursor import Place, StreamCursor, cursor_of_stream, epoch_begin, stream_state
from loaders.streams.window import StreamStep


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
        name: of the stream, for metrics.
        identity: what a saved state must agree with.
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
        name: str,
        identity: Mapping[str, Any],
        stepping: Stepping,
        reader: Reader,
        metrics: Metrics,
        host: Callable[[], HostGroup],
        groups: Callable[[], ContextGroups | None],
        pin: bool,
        count: Callable[[], int],
    ) -> None:
        self.place = place
        self.name = name
        self.identity = identity
        self.stepping = stepping
        self.reader = reader
        self.metrics = metrics
        self.count = count
        self.pin = pin
        self._make_host, self._make_groups = host, groups
        self._host: HostGroup | None = None
        self._groups: ContextGroups | None = None
        self.standing = Standing(StreamCursor(), epoch_begin)
        self.last_step: StreamStep | None = None

    def start(self) -> Iterator[Batch]:
        """Iterate from a loaded state, or else over a new epoch. Collective the first time."""
        if self._host is None:
            self._host, self._groups = self._make_host(), self._make_groups()
        cursor = self.standing.begin()
        self.place.begin(cursor.epoch)
        if cursor.stream is None and not cursor.drawn:
            self.standing.cursor = cursor = replace(cursor, stream=self.place.state())
        return self._run(cursor, self.standing.mark(), self._host)

    def state(self) -> dict[str, Any]:
        """Where the next step comes from; see `stream_state`."""
        return stream_state(self.standing.cursor, self.identity)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a state was saved. Raises as `cursor_of_stream`."""
        self.standing.load(cursor_of_stream(state, self.identity))

    def _run(self, cursor: StreamCursor, mark: object, host: HostGroup) -> Iterator[Batch]:
        """Batches of this rank until all streams are at their end; then the next epoch is due."""
        steps = self.stepping.steps(cursor, host)
        number = cursor.step
        while True:
            self.standing.check(mark)
            began = time.perf_counter()
            step = next(steps, None)
            if step is None:
                break
            batches = self._batches(step, number, host)
            self.last_step = step
            for batch in batches:
                self.standing.check(mark)
                self.metrics.wait_s += time.perf_counter() - began
                self.metrics.batches += 1
                self.metrics.dummies += batch.place.is_dummy
                if batch.place.last_in_step:
                    self.metrics.add_step(step.plan, step.table, step.plan_s)
                    self.metrics.imbalance += step.imbalance - step.plan.imbalance
                    number = step.behind.step
                    self.standing.move(mark, step.behind)
                yield batch
                began = time.perf_counter()
        self.standing.finish(mark)

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

    def report(self) -> dict[str, Any]:
        """`Metrics.report`, with what became of the samples: of all ranks with exchange, else of this one."""
        return self.metrics.report([self.name], {}) | self.stepping.counters()
