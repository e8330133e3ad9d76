"""Asking readers, whatever becomes of their processes: what is lost is asked again, reading being a function.

A reader's process may end at any time. Mostly that has nothing to do with the sample it was reading, so the
question is asked again, in halves. So where it ends each time, it does in the end over one row alone: that
one is skipped, or named.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayTaskError

from loaders.batches.shares import Share
from loaders.batches.skipping import blank
from loaders.faults import Fault, SampleError
from loaders.ray_engine.raised import GONE
from loaders.ray_engine.readers import Kind, Reading, UnknownSource
from loaders.ray_engine.session import NAMESPACE, pickled

TRIES = 3
"""Times that a reader may end over one row alone before it is blamed. Several rows are asked for in halves at
once, which changes nothing of what comes back."""
LOSSES = 30
"""Of answers, whatever the reason, before whoever asked is told."""
REVIVAL_S = 30.0
"""Ray starts a process anew within a second or two; another node takes until the lost one is given up."""

logger = logging.getLogger(__name__)

LOST = (*GONE, OutOfMemoryError, GetTimeoutError)


class ReaderGone(RuntimeError):
    """A reader does not come back by itself: who asked for the batch must make it anew."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Pieces of one source, asked of one reader. Axis: N = pieces."""

    name: str
    number: int
    row: NDArray[np.int64]
    start: NDArray[np.int64]
    num_tokens: NDArray[np.int64]
    step: int

    def halves(self) -> list[Question]:
        """The same in two."""
        middle = self.row.size // 2
        parts = (slice(None, middle), slice(middle, None))
        return [
            replace(self, row=self.row[part], start=self.start[part], num_tokens=self.num_tokens[part])
            for part in parts
        ]


Answer = tuple[Question, Any]
"""What was asked, and the reference to what comes back."""


class Readers:
    """The readers as one builder sees them.

    Args:
        plane: name of the loader.
        prefix: of the readers' names.
        kinds: its sources, for names in messages, and to tell readers that do not know them.
    """

    def __init__(self, plane: str, prefix: str, kinds: Sequence[Kind]) -> None:
        self._plane = plane
        self._prefix = prefix
        self._kinds = kinds
        self._handles: dict[str, Any] = {}
        self._processes: dict[str, str] = {}
        self._turns: dict[str, threading.Lock] = {}

    def ask(self, readers: Sequence[int], number: int, share: Share, mine: NDArray[np.int64]) -> list[Answer]:
        """Start reading the samples at ``mine``, all of source ``number``, by its readers at once."""
        parts = np.array_split(mine, min(len(readers), mine.size))
        first = share.step + share.slot + share.first_rank  # lone samples go round among the readers
        return [
            self._asked(
                Question(
                    f"{self._prefix}{readers[(first + at) % len(readers)]}",
                    number,
                    share.row[part],
                    share.start[part],
                    share.num_tokens[part],
                    share.step,
                )
            )
            for at, part in enumerate(parts)
        ]

    def take(self, answer: Answer) -> list[Reading]:
        """What was asked for, in order.

        Raises:
            SampleError: a row ends its reader each time. Errors of reading come as they are.
            ReaderGone: the reader does not come back.
        """
        return self._taken(*answer)

    def _taken(self, question: Question, reference: Any | None) -> list[Reading]:
        """The same; without a reference it is asked once more, alone."""
        ends = 0
        for _ in range(LOSSES):
            process = self._processes.get(question.name)
            try:
                return [self._reading_alone(question) if reference is None else self._reading(reference)]
            except RayTaskError as error:
                if not isinstance(error.cause, UnknownSource):
                    raise error.cause from None
                self._teach(question)
                reference = None if reference is None else self._asked(question)[1]
            except LOST as error:
                # a process that still lives, or was gone before it was asked, has not ended over these rows
                ends += self._await(question.name) != process is not None
                reference = None
                logger.info("%s was lost: %s", question.name, error)
            if ends >= (1 if question.row.size > 1 else TRIES):
                break
        else:
            raise ReaderGone(question.name)
        if question.row.size > 1:
            return [reading for half in question.halves() for reading in self._taken(half, None)]
        return [self._blamed(question)]

    def _reading_alone(self, question: Question) -> Reading:
        """Asked again while no other question is: a row that ends its reader takes those that wait with it.

        Another builder's may still be; that it takes part `TRIES` times is unlikely.
        """
        with self._turns.setdefault(question.name, threading.Lock()):
            return self._reading(self._asked(question)[1])

    def _reading(self, reference: Any) -> Reading:
        found: Reading = ray.get(reference)
        return found

    def _teach(self, question: Question) -> None:
        kind = pickled(self._kinds[question.number])
        with suppress(*LOST):  # then the question is asked in vain as well
            try:
                ray.get(self._handle(question.name).learn.remote(self._plane, question.number, kind))
            except RayTaskError as error:
                raise error.cause from None

    def _blamed(self, question: Question) -> Reading:
        row, size = int(question.row[0]), int(question.num_tokens[0])
        kind = self._kinds[question.number]
        source = kind.source
        reason = f"the process of its reader ended {TRIES} times while it was read alone"
        if not (kind.skip_faults and source.divisible):
            raise SampleError(
                f"{source.origin(row)}, stage read: {reason}. It may be broken, or need more memory than the "
                'node has. Repair the sample, or pass on_error="skip" to go on without such samples.'
            )
        fault = Fault(
            source=source.name,
            row=row,
            origin=source.origin(row),
            stage="read",
            error="ReaderDied",
            reason=reason,
            trace="",
        )
        return Reading(rows=blank(size, str(fault)), faults=(fault,), seconds=0.0, size_bytes=0)

    def _asked(self, question: Question) -> Answer:
        handle = self._handle(question.name)
        asked = (question.number, question.row, question.start, question.num_tokens, question.step)
        return question, handle.read.remote(self._plane, *asked)

    def _handle(self, name: str) -> Any:
        if name not in self._handles:
            try:
                self._handles[name] = ray.get_actor(name, namespace=NAMESPACE)
            except ValueError:
                raise ReaderGone(name) from None
        return self._handles[name]

    def _await(self, name: str) -> str:
        """Come back when the reader answers again; says which process it is."""
        give_up = time.monotonic() + REVIVAL_S
        while time.monotonic() < give_up:
            try:
                process: str = ray.get(self._handle(name).process.remote(), timeout=REVIVAL_S)
                self._processes[name] = process
                return process
            except LOST:
                self._handles.pop(name, None)  # one of this name may have been made anew
                time.sleep(0.05)
        raise ReaderGone(name)
