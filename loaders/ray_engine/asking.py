"""Asking readers, whatever becomes of their processes: what is lost is asked again, reading being a function.

A reader's process may end at any time. Mostly that has nothing to do with the sample it was reading, so the
question is asked again. Where it ends each time, the rows are asked for in halves, down to the one row that
ends it: that one is skipped, or named.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayTaskError

from loaders.faults import Fault, SampleError
from loaders.ray_engine.readers import Reading, UnknownSource
from loaders.ray_engine.session import NAMESPACE, pickled
from loaders.shares import Share
from loaders.skipping import blank
from loaders.sources.base import Source

TRIES = 3
"""Times that a reader may end over the same rows before they are asked for in halves, or one is blamed."""
REVIVAL_S = 30.0
"""Ray starts a process anew within a second or two; another node takes until the lost one is given up."""

LOST = (RayActorError, OutOfMemoryError, GetTimeoutError)


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
        sources: for names in messages, and to tell readers that do not know them.
        prefix: of the readers' names.
        skip_faults: whether a row that ends its reader each time is skipped.
    """

    def __init__(self, sources: Sequence[Source], *, prefix: str, skip_faults: bool) -> None:
        self._sources = sources
        self._prefix = prefix
        self._skip_faults = skip_faults
        self._handles: dict[str, Any] = {}

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
        question, reference = answer
        for _ in range(TRIES):
            try:
                return [self._reading(reference)]
            except RayTaskError as error:
                if not isinstance(error.cause, UnknownSource):
                    raise error.cause from error
                self._teach(question)
            except LOST:
                self._await(question.name)
            reference = self._asked(question)[1]
        if question.row.size > 1:
            return [reading for half in question.halves() for reading in self.take(self._asked(half))]
        return [self._blamed(question)]

    def _reading(self, reference: Any) -> Reading:
        found: Reading = ray.get(reference)
        return found

    def _teach(self, question: Question) -> None:
        source = pickled(self._sources[question.number])
        with suppress(*LOST):  # then the question is asked in vain as well
            ray.get(self._handle(question.name).learn.remote(question.number, source))

    def _blamed(self, question: Question) -> Reading:
        row, size = int(question.row[0]), int(question.num_tokens[0])
        source = self._sources[question.number]
        reason = f"the process of its reader ended {TRIES} times while it was read alone"
        if not (self._skip_faults and source.divisible):
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
        return question, handle.read.remote(
            question.number, question.row, question.start, question.num_tokens, question.step
        )

    def _handle(self, name: str) -> Any:
        if name not in self._handles:
            try:
                self._handles[name] = ray.get_actor(name, namespace=NAMESPACE)
            except ValueError:
                raise ReaderGone(name) from None
        return self._handles[name]

    def _await(self, name: str) -> None:
        """Come back when the reader answers again."""
        give_up = time.monotonic() + REVIVAL_S
        while time.monotonic() < give_up:
            try:
                ray.get(self._handle(name).alive.remote(), timeout=REVIVAL_S)
                return
            except LOST:
                self._handles.pop(name, None)  # one of this name may have been made anew
                time.sleep(0.05)
        raise ReaderGone(name)
