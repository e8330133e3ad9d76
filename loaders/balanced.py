"""The balanced mode of `loaders.DataLoader`: order -> steps -> plans -> batches of this rank."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Sampler

from balancer.runtime import ContextGroups
from loaders.ahead import ahead
from loaders.batches.batch import Batch
from loaders.batches.collate import Packed
from loaders.batches.device import Mover, one_ahead
from loaders.batches.reader import Reader
from loaders.batches.shares import Share, shares_of_rank
from loaders.batches.weights import count_labels
from loaders.catalog import COUNTED
from loaders.lookalikes import check_own_order
from loaders.metrics import Metrics
from loaders.opening import Opened
from loaders.order.steps import Steps
from loaders.planning.separate import SeparateReader
from loaders.planning.step import PlannedStep, Planning
from loaders.quarantine import Quarantine
from loaders.standing import Standing
from loaders.state import Cursor, epoch_begin, from_state, to_state

PLAN_AHEAD = 2
"""Steps planned before they are needed. One hides the planner behind a step; two absorb an uneven step."""

PLAN_LIMIT_S = 60.0
"""A timeout of the loader is at least this long for plans: the first one may have to compile its kernels."""


def no_shares() -> Iterator[Share]:
    """What a queue holds between iterations; has a name, so that a loader can be pickled."""
    return iter(())


class ShareQueue(Sampler[Share]):
    """What the reading loader draws its work from: the shares of the iteration that is being started."""

    def __init__(self) -> None:
        self.make: Callable[[], Iterator[Share]] = no_shares

    def __iter__(self) -> Iterator[Share]:
        return self.make()


class InProcess(Iterable[Packed]):
    """Reads shares where they are asked for: what torch's loader does without workers, less its overhead.

    It is a tenth of a millisecond a batch, half of what a packed batch of plain text costs.
    """

    def __init__(self, reader: Dataset[Packed], queue: ShareQueue) -> None:
        self.reader = reader
        self.queue = queue

    def __iter__(self) -> Iterator[Packed]:
        # the queue makes its shares now, as torch's loader has it, and not with the first batch
        return map(self.reader.__getitem__, iter(self.queue))


class Balanced:
    """State of a balanced loader: the cursor, the reading loader beneath and the counters.

    Args:
        planning: how steps are made.
        opened: the data.
        filler_sizes: tokens of the filler medium of each kind.
        rank: data rank of this process.
        reader: makes batches of shares, and is what a rehearsal reads with.
        reading: makes what reads shares, given their queue: torch's loader, or `InProcess`.
        metrics: counters of given-out steps.
        groups: makes this process's `ContextGroups` when the first iteration starts, on all ranks alike;
            gives ``None`` where batches need no process group.
        quarantine: takes the samples that could not be read; ``None``: there are none.
        timeout_s: how long the plan of a step may take, which may read rows; 0: any time.
        mover: moves batches to a device, one ahead; ``None``: they stay where they are.
    """

    def __init__(
        self,
        planning: Planning,
        *,
        opened: Opened,
        filler_sizes: Mapping[str, int],
        rank: int,
        reader: Reader | SeparateReader,
        reading: Callable[[ShareQueue], Iterable[Packed | Batch]],
        metrics: Metrics,
        groups: Callable[[], ContextGroups | None],
        quarantine: Quarantine | None = None,
        timeout_s: float = 0,
        mover: Mover | None = None,
    ) -> None:
        self.planning = planning
        self.opened = opened
        self.filler_sizes = filler_sizes
        self.rank = rank
        self.reader = reader
        self.metrics = metrics
        self.quarantine = quarantine
        self.timeout_s = timeout_s
        self.mover = mover
        self._make_groups = groups
        self._groups: ContextGroups | None = None
        self._has_groups = False
        self.standing = Standing(Cursor(), epoch_begin)
        self.queue = ShareQueue()
        self.reading = reading(self.queue)
        self.last_planned: PlannedStep | None = None
        catalogs = planning.steps.catalogs
        self.knows_loss_tokens = all(catalog.source.knows_loss_tokens for catalog in catalogs)

    @property
    def cursor(self) -> Cursor:
        """Where the next step comes from."""
        return self.standing.cursor

    def attach(self, batch: Batch) -> Batch:
        """Give a batch the process group of its ranks."""
        if self._groups is not None and batch.place.cp_degree > 1:
            self._groups.attach(batch)  # type: ignore[arg-type]
        return batch

    def start(self) -> BalancedIterator:
        """Iterate from a loaded state, or else over a new epoch."""
        cursor = self.standing.begin()
        self.make_groups()
        return BalancedIterator(self, cursor)

    def make_groups(self) -> None:
        """Make the process groups, once; all ranks must come here."""
        if not self._has_groups:
            self._groups, self._has_groups = self._make_groups(), True

    def state(self) -> dict[str, Any]:
        """Where the next step comes from; see `to_state`."""
        return to_state(self.cursor, self.opened.identity)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a state was saved. Raises as `from_state`."""
        self.standing.load(from_state(state, self.opened.identity))

    def report(self) -> dict[str, Any]:
        """`Metrics.report`, with what became of the data's rows, whether given out yet or not."""
        report = self.metrics.report(self.opened.names, self.filler_sizes)
        catalogs = self.planning.steps.catalogs
        for name in COUNTED:
            report[name] = sum(catalog.counts.get(name, 0) for catalog in catalogs)
        drawn = zip(report["samples_by_source"].items(), catalogs, strict=True)
        return report | {
            "skipped": 0 if self.quarantine is None else len(self.quarantine.rejected),
            "cut_tokens": sum(catalog.cut_tokens for catalog in catalogs),
            "shuffle_radius": dict(self.opened.radius),
            "epochs_by_source": {name: count / max(len(one), 1) for (name, count), one in drawn},
        }

    def count(self) -> int:
        """Steps of an epoch: of the one that is running, or comes next."""
        return self.planning.steps.count(self.cursor.begin)

    def begin_of(self, epoch: int | None) -> Cursor:
        """Where an epoch begins: the current one, or another as if it came next."""
        if epoch is None or epoch == self.cursor.epoch:
            return self.cursor.begin
        return epoch_begin(self.cursor, epoch)


class BalancedIterator(Iterator[Batch]):
    """Batches of one rank, from a cursor to the end of its epoch."""

    def __init__(self, owner: Balanced, cursor: Cursor) -> None:
        self._owner = owner
        self._cursor = cursor
        self._given: deque[PlannedStep] = deque()  # planned and handed to the reader, not yet consumed
        self._mark = owner.standing.mark()
        # the queue must not hold on to this: whoever drops the iteration so ends its workers and its thread
        given = self._given
        owner.queue.make = lambda: _shares(owner.planning, owner.rank, cursor, given, owner.timeout_s)
        self._reading = iter(owner.reading)
        self._inner = _finished(owner, self._reading)
        if owner.mover is not None:
            self._inner = one_ahead(self._inner, owner.mover)
        owner.queue.make = no_shares

    def __next__(self) -> Batch:
        owner = self._owner
        owner.standing.check(self._mark)
        started = time.perf_counter()
        try:
            batch = next(self._inner)
        except StopIteration:
            owner.standing.finish(self._mark)
            raise
        except SystemError as error:
            # what numba makes of a Ctrl-C that comes while a kernel is being called
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise error.__cause__ from None
            raise
        place, metrics = batch.place, owner.metrics
        metrics.wait_s += time.perf_counter() - started
        metrics.batches += 1
        metrics.dummies += place.is_dummy
        if batch.counts:
            metrics.counts.update(batch.counts)
        if owner.quarantine is not None:
            for fault in batch.faults:
                owner.quarantine.add(fault)
        owner.last_planned = planned = self._given[0]
        if planned.separate is not None:
            planned.separate.give(batch, owner.rank)
        if place.last_in_step:
            self._given.popleft()
            metrics.add_step(planned.plan, planned.table, planned.plan_s, planned.fillers, planned.encoders)
            owner.standing.move(self._mark, planned.behind)
        return batch

    def __iter__(self) -> BalancedIterator:
        return self

    def __len__(self) -> int:
        return self._owner.planning.steps.count(self._cursor.begin)


def _finished(owner: Balanced, reading: Iterator[Packed | Batch]) -> Iterator[Batch]:
    """Batches as they are given out; where labels are counted when read, a step is read as a whole first.

    It does not refer to the iteration that it serves, so that one goes, with its workers, when it is dropped.
    """
    step: list[Batch] = []
    for item in reading:
        batch = owner.attach(item.to_batch() if isinstance(item, Packed) else item)
        if owner.knows_loss_tokens:
            yield batch
            continue
        step.append(batch)
        if batch.last_in_step:
            yield from count_labels(step, owner.planning.topology.ranks)
            step = []


def _shares(
    planning: Planning, rank: int, cursor: Cursor, given: deque[PlannedStep], timeout_s: float
) -> Iterator[Share]:
    """One rank's work from ``cursor`` to the end of the epoch, drawn before it is given out."""
    # One rank's plan takes less than a thread that makes it elsewhere: 0.15 of 1.6 ms a step of 512 samples.
    depth = 0 if planning.topology.ranks == 1 and not timeout_s else PLAN_AHEAD
    for planned in ahead(lambda: planning.epoch(cursor), depth, timeout_s=timeout_s):
        given.append(planned)
        samples = int(np.count_nonzero(planned.table.num_loss_tokens))
        if planned.separate is not None:
            yield from planned.separate.shares(
                planned.table, rank=rank, step=planned.number, step_samples=samples
            )
            continue
        yield from shares_of_rank(
            planned.plan,
            planned.table,
            rank=rank,
            step=planned.number,
            fillers=planned.fillers,
            every_slot=planning.every_slot,
            pad_slots=planning.pad_slots,
            step_samples=samples,
        )


class OrderSampler(Sampler[Any]):
    """The epoch's order as torch's samplers give it: row numbers, or (source, row) pairs of a mixture.

    It is what ``loader.sampler`` shows; the balanced mode itself draws whole steps at once.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.begin = Cursor()
        """Where the epoch begins that is shown."""

    @property
    def epoch(self) -> int:
        """The epoch that is shown."""
        return self.begin.epoch

    def set_epoch(self, epoch: int, first_step: int = 0) -> None:
        """Show another epoch's order, as it is after so many steps."""
        self.begin = Cursor(epoch=epoch, step=first_step, first_step=first_step)

    def __len__(self) -> int:
        return self.steps.order.size(self.epoch)

    def __iter__(self) -> Iterator[Any]:
        pairs = len(self.steps.catalogs) > 1
        whole = replace(self.steps, samples=1024, tokens=None, drop_last=False)
        cursor: Cursor | None = Cursor(epoch=self.epoch)
        while cursor is not None and (found := whole.members(cursor)) is not None:
            table, cursor = found
            first = table.start == 0
            rows = table.row[first].tolist()
            yield from zip(table.source[first].tolist(), rows, strict=True) if pairs else rows


class StepSampler(Sampler[list[Any]]):
    """The epoch's steps as torch's batch samplers give them: the samples of one optimizer step at a time."""

    def __init__(self, steps: Steps, sampler: OrderSampler | None = None, **others: Any) -> None:
        check_own_order(steps, others)
        assert sampler is not None
        self.steps = steps
        self.sampler = sampler
        self.batch_size = steps.samples
        self.drop_last = steps.drop_last

    def __len__(self) -> int:
        return self.steps.count(self.sampler.begin)

    def __iter__(self) -> Iterator[list[Any]]:
        pairs = len(self.steps.catalogs) > 1
        cursor = self.sampler.begin
        while (found := self.steps.members(cursor)) is not None:
            table, cursor = found
            first = table.start == 0
            rows: Sequence[Any] = table.row[first].tolist()
            yield list(zip(table.source[first].tolist(), rows, strict=True) if pairs else rows)
