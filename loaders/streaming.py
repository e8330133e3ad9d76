"""The balanced mode over a stream: a bounded window of samples, divided into steps of equal time.

Every rank has a stream of its own. A window holds the samples of a few steps; they are divided so that its
steps take equally long, which brings the ranks' steps together without moving a sample. What a step needs
to know of the other ranks (labels, slots, who has samples left) is one message of 32 bytes from each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer import StepPlan, Topology, plan_step
from balancer.runtime import process_rank
from balancer.runtime.agreement import all_gather_ints
from loaders.batch import Batch
from loaders.media.quarantine import Quarantine
from loaders.metrics import Metrics
from loaders.reader import Reader
from loaders.shares import Share, shares_of_rank
from loaders.sources.streams import keeps_exact_state
from loaders.stream_intake import Intake
from packing.table import SampleTable

VERSION = 1
WINDOW = 4
"""Steps of a window by default."""
NANOSECONDS = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamCursor:
    """Where the next step comes from: the beginning of a window, and how many of its steps are done."""

    epoch: int = 0
    step: int = 0
    """Finished steps, over all epochs."""
    drawn: int = 0
    """Samples that were drawn from the stream before the window."""
    within: int = 0
    """Finished steps of the window."""
    ended: bool = False
    """Whether the stream was found at its end: its own state may then be that of its beginning."""
    stream: Any = None
    """The stream's own state at the beginning of the window; ``None`` where it has none."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Dividing:
    """How a window becomes steps."""

    batch_size: int
    """Samples of a step on this rank, on average over the window."""
    window: int
    """Steps of a window."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of ``plan_step``."""

    def steps(self, table: SampleTable, *, drop_last: bool) -> list[NDArray[np.int64]]:
        """Indices of each step's samples, in stream order: steps of nearly equal predicted time.

        As many steps as without a window, none of them empty. With ``drop_last`` the samples behind the last
        full step are left out.
        """
        size = self.batch_size
        count = len(table) // size if drop_last else -(-len(table) // size)
        whole = table.take(np.arange(min(count * size, len(table))))
        if count <= 1:
            return [np.arange(len(whole))] * count
        plan = plan_step(whole, topology=Topology(ranks=count), **{**self.options, "sync": "step"})
        batches = plan.micro_batches
        steps = [
            np.sort(
                np.concatenate([np.zeros(0, np.int64), *(batches.samples(int(m)) for m in plan.for_rank(k))])
            )
            for k in range(count)
        ]
        if all(step.size for step in steps):
            return steps
        return [np.arange(start, min(start + size, len(whole))) for start in range(0, len(whole), size)]

    def plan(self, table: SampleTable) -> StepPlan:
        """Micro-batches of one step on this rank."""
        return plan_step(table, topology=Topology(ranks=1), **self.options)


class Streaming:
    """State of a loader over a stream: the cursor, the counters, and the stream."""

    def __init__(
        self,
        dataset: Any,
        *,
        samples: Callable[[], Iterable[Any]],
        in_process: bool,
        dividing: Dividing,
        intake: Intake,
        reader: Reader,
        metrics: Metrics,
        rank: int,
        ranks: int,
        drop_last: bool,
    ) -> None:
        self.dataset = dataset
        self.samples = samples
        self.has_state = in_process and keeps_exact_state(dataset)
        self.dividing = dividing
        self.intake = intake
        self.reader = reader
        self.metrics = metrics
        self.rank, self.ranks = rank, ranks
        self.drop_last = drop_last
        self.sync = str(dividing.options["sync"])
        self.cursor = StreamCursor()
        self.resumes = True
        """Whether the next iteration goes on at the cursor instead of starting an epoch."""
        self.latest: object | None = None
        """Mark of the iteration that moves the cursor."""
        self.last_plan: StepPlan | None = None

    # ------------------------------------------------------------------------------------ iteration

    def start(self) -> Iterator[Batch]:
        """Iterate from a loaded state, or else over a new epoch."""
        if not self.resumes:
            self.cursor = StreamCursor(epoch=self.cursor.epoch + 1, step=self.cursor.step)
        self.resumes = False
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(self.cursor.epoch)
        if self.has_state and self.cursor.stream is None:
            self.cursor = replace(self.cursor, stream=self.dataset.state_dict())
        self.latest = mark = object()
        return self._run(self.cursor, mark)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration run over ``epoch``; a state loaded in the middle of it is kept."""
        if not (self.resumes and epoch == self.cursor.epoch):
            self.load(StreamCursor(epoch=int(epoch), step=self.cursor.step))

    def load(self, cursor: StreamCursor) -> None:
        """Let the next iteration go on at ``cursor``."""
        self.cursor, self.resumes, self.latest = cursor, True, None

    def _run(self, cursor: StreamCursor, mark: object) -> Iterator[Batch]:
        """Batches of this rank until all streams are at their end; then the next epoch is due."""
        own = self._own_steps(cursor)
        step = cursor.step
        while True:
            began = time.perf_counter()
            table, behind = next(own, (None, None))
            shares = self._shares(table, step)
            if shares is None:
                break
            step += 1
            if behind is not None:
                cursor = behind
            for share in shares:
                batch = self.reader[share].to_batch()
                self.metrics.wait_s += time.perf_counter() - began
                self.metrics.batches += 1
                self.metrics.dummies += batch.place.is_dummy
                if share.last_in_step:
                    self._count(table)
                    if self.latest is mark:
                        self.cursor = replace(cursor, step=step)
                yield batch
                began = time.perf_counter()
        if self.latest is mark:
            self.latest = None
            self.cursor = StreamCursor(epoch=self.cursor.epoch + 1, step=step)
            self.resumes = True

    def _count(self, table: SampleTable | None) -> None:
        """Count a finished step of this rank; its imbalance is that of all ranks' own plans."""
        assert self.last_plan is not None
        self.metrics.add_step(self.last_plan, _nothing() if table is None else table, self._plan_s)
        self.metrics.imbalance += self._imbalance - self.last_plan.imbalance

    def _own_steps(self, cursor: StreamCursor) -> Iterator[tuple[SampleTable, StreamCursor]]:
        """Steps of this rank, with the cursor behind each."""
        stream = self._opened(cursor)
        if cursor.ended:
            return
        wanted = self.dividing.batch_size * self.dividing.window
        skip = cursor.within
        while True:
            table = self.intake.take(stream, wanted)
            after = replace(self._mark(cursor), ended=len(table) < wanted)
            steps = self.dividing.steps(table, drop_last=self.drop_last)
            for number, index in enumerate(steps):
                if number < skip:
                    continue
                last = number == len(steps) - 1
                yield table.take(index), after if last else replace(cursor, within=number + 1)
            if len(table) < wanted:
                return
            cursor, skip = after, 0

    def _opened(self, cursor: StreamCursor) -> Iterator[Any]:
        """The stream at the beginning of the cursor's window."""
        if self.has_state and cursor.stream is not None:
            self.dataset.load_state_dict(cursor.stream)
            self.intake.drawn = cursor.drawn
            return iter(self.samples())
        stream = iter(() if cursor.ended else self.samples())
        for _ in range(cursor.drawn):
            next(stream, None)
        self.intake.drawn = cursor.drawn
        return stream

    def _mark(self, cursor: StreamCursor) -> StreamCursor:
        state = self.dataset.state_dict() if self.has_state else None
        return replace(cursor, drawn=self.intake.drawn, within=0, stream=state)

    def count(self) -> int:
        """Steps of an epoch, where the stream knows its length."""
        size, step = len(self.dataset), self.dividing.batch_size
        return size // step if self.drop_last else -(-size // step)

    def report(self, names: Sequence[str]) -> dict[str, Any]:
        """`Metrics.report` of this rank's own steps, with what became of its samples."""
        report = self.metrics.report(names, {})
        for name in ("kept", "dropped", "truncated", "empty"):
            report[name] = self.intake.counts[name]
        report["cut_tokens"] = self.intake.cut_tokens
        quarantine = self.intake.quarantine
        report["skipped"] = 0 if quarantine is None else len(quarantine.rejected)
        return report

    # ----------------------------------------------------------------------------------------- steps

    def _shares(self, table: SampleTable | None, step: int) -> Sequence[Share] | None:
        """Work of this rank in a step; ``None`` where no rank has any. Collective over all ranks."""
        started = time.perf_counter()
        samples = _nothing() if table is None else table
        plan = self.dividing.plan(samples)
        self._plan_s = time.perf_counter() - started
        shares = shares_of_rank(plan, samples, rank=0, step=step)
        told = (table is not None, int(samples.num_loss_tokens.sum()), len(shares), plan.time_s * NANOSECONDS)
        of_ranks = np.array(_told_to_all([int(value) for value in told], self.ranks), np.int64)  # [R, 4]
        alive = of_ranks[:, 0] > 0
        if not alive.any() or (self.drop_last and not alive.all()):
            return None
        self.last_plan = plan
        times = of_ranks[:, 3]
        self._imbalance = float(times.max() / times.mean()) if times.any() else 1.0
        slots = int(of_ranks[:, 2].max()) if self.sync == "micro_batch" else len(shares)
        idle = shares_of_rank(self.dividing.plan(_nothing()), _nothing(), rank=0, step=step)
        shares += idle * (slots - len(shares))
        return [
            replace(
                share,
                slot=slot,
                last_in_step=slot == slots - 1,
                first_rank=self.rank,
                num_ranks=self.ranks,
                step_loss_tokens=int(of_ranks[:, 1].sum()),
            )
            for slot, share in enumerate(shares)
        ]


def open_stream(
    dataset: Any,
    *,
    samples: Callable[[], Iterable[Any]],
    in_process: bool,
    dividing: Dividing,
    oversize: str,
    quarantine: Quarantine | None,
    collate_fn: Any,
    pad_to: Sequence[int],
    rank: int,
    ranks: int,
    drop_last: bool,
) -> Streaming:
    """A stream as a balanced loader reads it; arguments as `Streaming` and the loader have them."""
    capacity = int(dividing.options["max_tokens"])
    name = type(dataset).__name__
    intake = Intake(name, capacity=capacity, oversize=oversize, quarantine=quarantine)
    return Streaming(
        dataset,
        samples=samples,
        in_process=in_process,
        dividing=dividing,
        intake=intake,
        reader=Reader([intake.source], capacity=capacity, collate_fn=collate_fn, pad_to=pad_to),
        metrics=Metrics.of(capacity, 1),
        rank=rank,
        ranks=ranks,
        drop_last=drop_last,
    )


def as_it_is(sample: Any) -> Any:
    """No collation: samples come from the workers one by one."""
    return sample


def _nothing() -> SampleTable:
    return SampleTable.from_lengths(np.zeros(0, np.int64))


def _told_to_all(values: Sequence[int], ranks: int) -> list[list[int]]:
    """Every rank's values. Raises RuntimeError for ranks that are only played and cannot be asked."""
    if ranks == 1:
        return [list(values)]
    process = process_rank()
    if process is not None and process[1] == ranks:
        return all_gather_ints(values)
    raise RuntimeError(
        f"a stream on {ranks} data ranks must agree on each step, but torch.distributed has no group of "
        "exactly these ranks. Call init_process_group first, or use data whose rows are addressed by number, "
        "from which every rank plans alone."
    )


def stream_state(streaming: Streaming, identity: Mapping[str, Any]) -> dict[str, Any]:
    """A plain dict; of this rank's own stream, so every rank saves its own."""
    cursor = streaming.cursor
    return {
        "version": VERSION,
        "kind": "stream",
        "epoch": cursor.epoch,
        "step": cursor.step,
        "drawn": cursor.drawn,
        "within": cursor.within,
        "ended": cursor.ended,
        "stream": cursor.stream,
        "identity": dict(identity),
    }


def cursor_of_stream(state: Mapping[str, Any], identity: Mapping[str, Any]) -> StreamCursor:
    """The cursor of a saved state.

    Raises:
        ValueError: a state of another kind, version, rank or window; says what differs.
    """
    if state.get("kind") != "stream" or state.get("version") != VERSION:
        raise ValueError(
            f"this is not a state of a loader over a stream of version {VERSION}: kind is "
            f"{state.get('kind')!r}, version {state.get('version')!r}."
        )
    saved = state["identity"]
    differing = [name for name in identity if saved.get(name) != identity[name]]
    if differing:
        detail = "; ".join(f"{name} was {saved.get(name)!r}, is {identity[name]!r}" for name in differing)
        raise ValueError(
            f"the state belongs to another stream or other windows: {detail}. Every rank loads the state "
            "that it saved, on as many ranks, with the same batch_size and window."
        )
    names = ("epoch", "step", "drawn", "within", "ended", "stream")
    return StreamCursor(**{name: state[name] for name in names})
