"""Samples that were read and told to all ranks and are not yet done: one's own, and what is known of all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.order.steps import join
from loaders.streams.cursor import Place, StreamCursor
from loaders.streams.intake import Intake
from loaders.streams.order import ENDLESS, in_turn
from loaders.streams.window import nothing
from packing.table import SampleTable


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the stream that can be come back to."""

    drawn: int
    stream: Any


class Own:
    """Samples of this rank's stream that are read and not yet done, and the marks behind which they lie."""

    def __init__(self, place: Place, intake: Intake, cursor: StreamCursor) -> None:
        self.place, self.intake = place, intake
        self.ended = cursor.ended
        self.taken = cursor.taken
        self.numbers: list[int] = []
        """Of the samples that are told and not done."""
        self._marks = [Mark(cursor.drawn, cursor.stream)]
        self._stream = place.open(cursor)
        intake.source.held = {}
        intake.drawn = cursor.drawn + cursor.skip

    def draw(self, count: int) -> SampleTable:
        """The next ``count`` samples of the stream, fewer where it ends."""
        if self.ended or count == 0:
            return nothing(self.intake.phases)
        drawn = self.intake.draw(self._stream, count)
        self.ended = len(drawn) < count
        if not self.ended:  # at its end a stream's own state may be that of its beginning
            self._marks.append(Mark(self.intake.drawn, self.place.state()))
        self.numbers += drawn
        return self.intake.table(drawn)

    def finish(self, count: int) -> None:
        """The first ``count`` told samples are done."""
        self.taken += count
        for number in self.numbers[:count]:
            self.intake.source.held.pop(number, None)
        del self.numbers[:count]

    def cursor(self, cursor: StreamCursor, count: int) -> StreamCursor:
        """``cursor`` moved behind the first ``count`` told samples."""
        left = self.numbers[count:]
        reached = left[0] if left else self.intake.drawn
        behind = [mark for mark in self._marks if mark.drawn <= reached]
        self._marks = [behind[-1], *(mark for mark in self._marks if mark.drawn > reached)]
        mark = behind[-1]
        return replace(
            cursor,
            drawn=mark.drawn,
            stream=mark.stream,
            skip=reached - mark.drawn,
            taken=self.taken + count,
            ended=self.ended and not left,
        )


class Told:
    """What all ranks know: the samples that were told and are not yet done. Equal on all of them.

    Args:
        begun: [R] samples of each stream that are done.
        ended: [R] which streams are known to be at their end.
        phases: of the samples.
    """

    def __init__(self, begun: NDArray[np.int64], ended: NDArray[np.int64], phases: tuple[str, ...]) -> None:
        self.begun = begun
        self.ended = ended > 0
        self.table = nothing(phases)
        """A row for each told sample or piece of one; its source is the rank that read it."""
        self.number = np.zeros(0, np.int64)
        """[rows] Number of the row's sample in its stream."""
        self.samples, self.tokens = 0, 0
        """Told so far, for an estimate of their mean length."""

    @property
    def held(self) -> NDArray[np.int64]:
        """[R] Samples that are told and not done."""
        firsts = self.table.source[self.table.start == 0]
        return np.bincount(firsts, minlength=self.begun.size).astype(np.int64)

    @property
    def ends(self) -> NDArray[np.int64]:
        """[R] Where each stream ends, as far as that is known."""
        return np.where(self.ended, self.begun + self.held, ENDLESS)

    def add(self, table: SampleTable) -> None:
        """More samples of all ranks, rank after rank."""
        first = table.start == 0
        counts = np.bincount(table.source[first], minlength=self.begun.size)  # [R]
        before = np.cumsum(counts) - counts
        within = np.cumsum(first) - 1 - before[table.source]  # [rows]
        number = (self.begun + self.held)[table.source] + within
        self.table, self.number = join([self.table, table]), np.concatenate([self.number, number])
        self.samples += int(counts.sum())
        self.tokens += int(table.num_tokens.sum())

    def first(self, counts: NDArray[np.int64]) -> SampleTable:
        """The first ``counts`` [R] samples of the ranks in turn."""
        rows = np.flatnonzero(self._is_among(counts))
        part = self.table.take(rows)
        return part.take(in_turn(self.number[rows], part.source, part.start))

    def finish(self, counts: NDArray[np.int64]) -> None:
        """The first ``counts`` [R] samples of the ranks are done."""
        left = np.flatnonzero(~self._is_among(counts))
        self.table, self.number = self.table.take(left), self.number[left]
        self.begun = self.begun + counts

    def _is_among(self, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        among: NDArray[np.bool_] = self.number < (self.begun + counts)[self.table.source]
        return among
