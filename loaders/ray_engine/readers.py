"""The actor that reads: it holds the file state of its sources, once for all ranks."""

from __future__ import annotations

import os
import time
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import ray
from numpy.typing import NDArray
from ray.util import metrics

from loaders.batches.pieces import read_pieces
from loaders.faults import Fault
from loaders.ray_engine.accounts import Rate, Span, Spans, resident_bytes
from loaders.ray_engine.raised import remembered
from loaders.ray_engine.rows import plain_rows, release_decoded, release_unused, size_of_rows
from loaders.ray_engine.session import unpickled
from loaders.sources.base import Rows, Source

RELEASE_S = 5.0
"""Memory that decoding has left over is given back so often, while there is something to read."""
KINDS = 4096
"""Sources that a reader keeps open; those of loaders that are gone leave first."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reading:
    """Answer of a reader: pieces of one source, and what they cost."""

    rows: Rows
    faults: tuple[Fault, ...]
    seconds: float
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderStats:
    """What a reader tells of itself."""

    sources: tuple[str, ...]
    """Those it has been told of."""
    reads: int
    busy: float
    """Share of the last seconds in which it read."""
    size_bytes: int
    """Given out since it started."""
    bytes_per_s: float
    tokens_per_s: Mapping[str, float]
    """By source, over the last seconds."""
    tokens: Mapping[str, int]
    """By source, since it started."""
    faults: int
    memory_bytes: int


class UnknownSource(LookupError):
    """The reader has not been told of a source: it is new, or has been started anew."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Kind:
    """A source as a reader knows it."""

    source: Source
    capacity: int
    """Tokens of the longest sample."""
    skip_faults: bool
    """Let a sample that cannot be read keep its place."""


class SourceReader:
    """Actor: sample-level work (read, decode, tokenise, expand media). Any reader can read any source.

    It reads one thing after another; what tells of it is answered beside that.
    """

    def __init__(self) -> None:
        self._kinds: OrderedDict[tuple[str, int], Kind] = OrderedDict()
        self._process = f"{os.getpid()}-{time.monotonic_ns()}"
        self._spans = Spans()
        self._tokens: dict[str, Rate] = defaultdict(Rate)
        self._bytes, self._busy_us = Rate(), Rate()
        self._reads = self._faults = 0
        self._released = time.monotonic()
        self._metrics = ReaderMetrics()

    def learn(self, plane: str, number: int, kind: NDArray[np.uint8]) -> None:
        """Be told of a loader's source: a `Kind`, pickled. Its files are opened when it is read."""
        self._kinds[plane, number] = unpickled(kind)
        while len(self._kinds) > KINDS:
            self._kinds.popitem(last=False)

    def read(
        self,
        plane: str,
        number: int,
        row: NDArray[np.int64],
        start: NDArray[np.int64],
        num_tokens: NDArray[np.int64],
        step: int,
    ) -> Reading:
        """Pieces of source ``number`` of a loader, for a step; see `loaders.batches.pieces.read_pieces`.

        Raises:
            UnknownSource: `learn` comes first.
        """
        kind = self._kinds.get((plane, number))
        if kind is None:
            raise UnknownSource(number)
        self._kinds.move_to_end((plane, number))
        source = kind.source
        started = time.perf_counter()
        with remembered():
            rows, faults = read_pieces(
                source, row, start, num_tokens, capacity=kind.capacity, skip_faults=kind.skip_faults
            )
        seconds = time.perf_counter() - started
        size = size_of_rows(rows)
        self._count(source.name, step, int(num_tokens.sum()), size, seconds, len(faults))
        if time.monotonic() - self._released > RELEASE_S:
            release_unused()
            self._released = time.monotonic()
        return Reading(rows=plain_rows(rows), faults=tuple(faults), seconds=seconds, size_bytes=size)

    def trim(self) -> None:
        """Let decoded chunks go: from now on it reads other sources."""
        release_decoded()

    @ray.method(concurrency_group="telling")
    def process(self) -> str:
        """Names this process: another one has another name."""
        return self._process

    @ray.method(concurrency_group="telling")
    def stats(self) -> ReaderStats:
        """What it did."""
        now = time.monotonic()
        tokens = dict(self._tokens)
        return ReaderStats(
            sources=tuple(dict.fromkeys(kind.source.name for kind in list(self._kinds.values()))),
            reads=self._reads,
            busy=min(self._busy_us.per_second(now) / 1e6, 1.0),
            size_bytes=self._bytes.total,
            bytes_per_s=self._bytes.per_second(now),
            tokens_per_s={name: rate.per_second(now) for name, rate in tokens.items()},
            tokens={name: rate.total for name, rate in tokens.items()},
            faults=self._faults,
            memory_bytes=resident_bytes(),
        )

    @ray.method(concurrency_group="telling")
    def spans(self) -> list[Span]:
        """Its latest reads."""
        return self._spans.all()

    def _count(self, name: str, step: int, tokens: int, size_bytes: int, seconds: float, faults: int) -> None:
        now = time.monotonic()
        self._reads += 1
        self._faults += faults
        self._tokens[name].add(tokens, now)
        self._bytes.add(size_bytes, now)
        self._busy_us.add(int(seconds * 1e6), now)
        self._spans.add("read", name, seconds, step)
        self._metrics.count(name, tokens, size_bytes, seconds, faults)


class ReaderMetrics:
    """A reader's counters in Ray's own metrics, which Prometheus collects."""

    def __init__(self) -> None:
        def counter(name: str, description: str) -> metrics.Counter:
            return metrics.Counter(f"evenload_{name}", description, tag_keys=("source",))

        self._tokens = counter("read_tokens", "Tokens that readers gave, by source.")
        self._bytes = counter("read_bytes", "Bytes that readers gave, by source.")
        self._seconds = counter("read_seconds", "Seconds that readers read, by source.")
        self._faults = counter("skipped_samples", "Samples that could not be read and were skipped.")

    def count(self, source: str, tokens: int, size_bytes: int, seconds: float, faults: int) -> None:
        """Add one reading. Ray refuses to add nothing."""
        amounts = (
            (self._tokens, tokens),
            (self._bytes, size_bytes),
            (self._seconds, seconds),
            (self._faults, faults),
        )
        for counter, amount in amounts:
            if amount > 0:
                counter.inc(amount, {"source": source})


READER_OPTIONS = {"concurrency_groups": {"telling": 1}}
"""How the class becomes an actor."""
