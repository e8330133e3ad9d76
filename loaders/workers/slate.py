"""What is being read at the moment, written where others can see it when the reader cannot answer any more.

A slate is a few integers: in memory that worker processes share with the training process, or in this
process, shared between a reading thread and the one that waits for it. A note costs less than a microsecond.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from loaders.batches.shares import Share
    from loaders.sources.base import Source

FIELDS = ("busy", "step", "slot", "samples", "first_source", "first_row", "source", "row", "since_ns")
NOTHING = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A slate at one moment, with the names of what it has numbers of."""

    busy: bool
    begun: bool
    """Whether anything was read at all."""
    step: int
    slot: int
    samples: int
    origin: str
    """File and row that is being read, or the first one of the batch."""
    seconds: float
    """Since this sample was begun, or where samples are read together, these."""

    def doing(self) -> str:
        """As part of a sentence: ``"was reading a.parquet, row 3 (step 7, slot 0, 12 samples)"``."""
        if not self.begun:
            return "had not begun to read"
        batch = f"step {self.step}, slot {self.slot}, {self.samples} samples"
        if not self.busy:
            return f"was done reading ({batch}, the first {self.origin})"
        return f"was reading {self.origin} ({batch}) for {self.seconds:.1f} s"


class Slate:
    """Where one reader writes what it reads.

    Args:
        cells: int64[len(FIELDS)], a buffer that both sides see.
        sources: by the numbers that shares use.
    """

    def __init__(self, cells: Any, sources: Sequence[Source] = ()) -> None:
        self.cells = np.frombuffer(cells, np.int64)
        self.sources = sources
        self._numbers = {id(source): number for number, source in enumerate(sources)}

    @classmethod
    def here(cls, sources: Sequence[Source]) -> Slate:
        """One within this process."""
        return cls(np.zeros(len(FIELDS), np.int64), sources)

    @contextmanager
    def batch(self, share: Share) -> Iterator[None]:
        """While ``share`` is being read."""
        first = (int(share.source[0]), int(share.row[0])) if len(share) else (NOTHING, NOTHING)
        self.cells[1:] = (share.step, share.slot, len(share), *first, *first, time.monotonic_ns())
        self.cells[0] = 1
        yield
        self.cells[0] = 2  # not in a finally: what a failed reader was at stays to be read

    def row(self, source: Source, row: int) -> None:
        """A row is about to be read. Rows that a source asks another one for are not of its numbering."""
        number = self._numbers.get(id(source))
        if number is not None:
            self.cells[6:] = (number, row, time.monotonic_ns())

    def see(self) -> Seen:
        """What it says now."""
        busy, step, slot, samples, *places, since_ns = self.cells.tolist()
        source, row = places[2:] if busy == 1 else places[:2]
        origin = self.sources[source].origin(row) if 0 <= source < len(self.sources) else "no sample"
        seconds = (time.monotonic_ns() - since_ns) / 1e9
        return Seen(
            busy=busy == 1,
            begun=busy > 0,
            step=step,
            slot=slot,
            samples=samples,
            origin=origin,
            seconds=seconds,
        )


class _Current(threading.local):
    slate: Slate | None = None


_current = _Current()


def write_on(slate: Slate | None) -> None:
    """Let this thread's notes go to ``slate``."""
    _current.slate = slate


def current() -> Slate | None:
    """Where this thread's notes go."""
    return _current.slate


def note(source: Source, row: int) -> None:
    """Tell which row of a source is about to be read, for whoever waits for it."""
    if _current.slate is not None:
        _current.slate.row(source, row)
