"""The actor that builds micro-batches, next to the ranks it serves: one copy for all that share one."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.util import metrics

from loaders.batches.reader import Part, Reader, by_source, in_order
from loaders.batches.shares import Share
from loaders.faults import Fault
from loaders.ray_engine.accounts import Rate, Span, Spans, resident_bytes
from loaders.ray_engine.asking import Readers
from loaders.ray_engine.parcels import Parcel, to_parcel
from loaders.ray_engine.raised import dismiss, remembered
from loaders.ray_engine.readers import Kind
from loaders.ray_engine.routing import Table
from loaders.ray_engine.rows import concatenated, writable
from loaders.ray_engine.session import unpickled

WORKS = 16
"""Loaders that a builder serves; those that asked longest ago leave first, and may come back."""
TOKEN_BYTES = 4
"""Of a token id on its way; labels and media come on top."""
KEPT_PARCELS = 64
"""Shared micro-batches that wait for the rest of their ranks; later ones are built anew."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Built:
    """Answer of a builder: a micro-batch, and what reading it cost."""

    parcel: Parcel
    read_s: Mapping[int, float]
    """Seconds of readers' time by source."""
    read_tokens: Mapping[int, int]
    """Tokens that they gave, by source."""
    read_bytes: Mapping[int, int]
    """Bytes that they gave, by source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """How long a rank waited for a batch."""

    rank: int
    step: int
    start_s: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class BuilderStats:
    """What a builder tells of itself."""

    batches: int
    waiting: int
    """Micro-batches that are asked for and not built."""
    waiting_bytes: int
    """Of their tokens, as planned."""
    in_bytes: int
    """From readers, since it started."""
    out_bytes: int
    """To ranks: a shared micro-batch counts once."""
    in_bytes_per_s: float
    out_bytes_per_s: float
    batches_per_s: float
    wait_s: Mapping[int, float]
    """Seconds that each rank it serves has waited for batches."""
    steps: Mapping[int, int]
    """Latest step that each of them asked for."""
    memory_bytes: int


Cost = tuple[int, float, int]
"""Tokens that were read, seconds of readers' time, bytes."""


@dataclass(slots=True, eq=False)
class Work:
    """What a builder does for one loader."""

    reader: Reader
    readers: Readers
    table: Table = ()
    costs: dict[int, Cost] = field(default_factory=dict)
    """By source, since they were last asked for."""
    waits: dict[int, float] = field(default_factory=dict)
    """Seconds that ranks waited, by rank, since then."""

    def add(self, built: Built) -> None:
        """Count what reading cost."""
        for number, tokens in built.read_tokens.items():
            before = self.costs.get(number, (0, 0.0, 0))
            self.costs[number] = (
                before[0] + tokens,
                before[1] + built.read_s[number],
                before[2] + built.read_bytes[number],
            )

    def routes(self, number: int) -> Sequence[int]:
        """Readers of a source."""
        return self.table[number] if number < len(self.table) else (0,)


class BatchBuilder:
    """Actor: packing, joins, collating. It holds no files and nothing that cannot be built again."""

    def __init__(self) -> None:
        self._works: OrderedDict[str, Work] = OrderedDict()
        self._kept: OrderedDict[bytes, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._spans = Spans()
        self._batches, self._in, self._out = Rate(), Rate(), Rate()
        self._waiting: dict[int, int] = {}
        self._wait_s: dict[int, float] = defaultdict(float)
        self._steps: dict[int, int] = {}
        self._metrics = BuilderMetrics()

    def prepare(self, plane: str, reader: NDArray[np.uint8], readers: str) -> None:
        """Be told what to build for a loader: a `Reader`, pickled, whose sources are not read here.

        ``readers`` begins the name of each reader.
        """
        made: Reader = unpickled(reader)
        kinds = [
            Kind(source=source, capacity=made.capacity, skip_faults=made.skip_faults)
            for source in made.sources
        ]
        with self._lock:
            self._works[plane] = Work(reader=made, readers=Readers(plane, readers, kinds))
            while len(self._works) > WORKS:
                self._works.popitem(last=False)

    def route(self, plane: str, table: Table) -> None:
        """Be told which readers read which source; until then, the first reads all."""
        if plane in self._works:
            self._works[plane].table = table

    def costs(self, plane: str) -> tuple[dict[int, Cost], dict[int, float]]:
        """What reading has cost for a loader, by source, and seconds its ranks waited, since last asked."""
        with self._lock:
            work = self._works.get(plane)
            if work is None:
                return {}, {}
            found = work.costs, work.waits
            work.costs, work.waits = {}, {}
            return found

    def build(self, plane: str, share: Share, rank: int, waits: Sequence[Wait] = ()) -> Built | None:
        """The micro-batch of a share, for its one rank, which says how long it waited lately.

        ``None`` where `prepare` comes first: the builder is new, or has been started anew.
        """
        self._note(plane, share, rank, waits)
        work = self._work(plane)
        return None if work is None else self._build(work, share)

    def build_shared(self, plane: str, share: Share, rank: int, waits: Sequence[Wait] = ()) -> list[Any]:
        """Reference to a micro-batch that several ranks take: the first of them has it built.

        Empty where `prepare` comes first.
        """
        self._note(plane, share, rank, waits)
        work = self._work(plane)
        if work is None:
            return []
        return [self._once(key_of(plane, share), lambda: ray.put(self._build(work, share)))]

    def stats(self) -> BuilderStats:
        """What it did."""
        now = time.monotonic()
        waiting = list(self._waiting.values())
        return BuilderStats(
            batches=self._batches.total,
            waiting=len(waiting),
            waiting_bytes=sum(waiting),
            in_bytes=self._in.total,
            out_bytes=self._out.total,
            in_bytes_per_s=self._in.per_second(now),
            out_bytes_per_s=self._out.per_second(now),
            batches_per_s=self._batches.per_second(now),
            wait_s=dict(self._wait_s),
            steps=dict(self._steps),
            memory_bytes=resident_bytes(),
        )

    def spans(self) -> list[Span]:
        """Its latest builds, and the waits of its ranks."""
        return self._spans.all()

    def _note(self, plane: str, share: Share, rank: int, waits: Sequence[Wait]) -> None:
        with self._lock:
            self._steps[rank] = share.step
            work = self._works.get(plane)
            for wait in waits:
                self._wait_s[wait.rank] += wait.seconds
                if work is not None:
                    work.waits[wait.rank] = work.waits.get(wait.rank, 0.0) + wait.seconds
                self._spans.add("wait", f"rank {wait.rank}", wait.seconds, wait.step, wait.start_s)
        self._metrics.waited(waits)

    def _work(self, plane: str) -> Work | None:
        with self._lock:
            if plane in self._works:
                self._works.move_to_end(plane)
            return self._works.get(plane)

    def _build(self, work: Work, share: Share) -> Built:
        started = time.perf_counter()
        call = threading.get_ident()
        self._waiting[call] = int(share.num_tokens.sum()) * TOKEN_BYTES
        try:
            with remembered():
                built = _gathered(work, share)
        finally:
            self._waiting.pop(call, None)
        now = time.monotonic()
        in_bytes = sum(built.read_bytes.values())
        with self._lock:
            work.add(built)
            self._batches.add(1, now)
            self._in.add(in_bytes, now)
            self._out.add(built.parcel.size_bytes, now)
            label = f"ranks {share.first_rank}..{share.first_rank + share.cp_degree - 1}, slot {share.slot}"
            self._spans.add("build", label, time.perf_counter() - started, share.step)
        self._metrics.built(in_bytes, built.parcel.size_bytes, len(self._waiting))
        return built

    def _once(self, key: bytes, make: Callable[[], Any]) -> Any:
        with self._lock:
            mine = key not in self._kept
            future = self._kept.setdefault(key, Future())
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT_PARCELS:
                self._kept.popitem(last=False)
        if mine:
            try:
                future.set_result(make())
            except BaseException as error:
                with self._lock:
                    self._kept.pop(key, None)
                future.set_exception(error)
        return future.result()


def _gathered(work: Work, share: Share) -> Built:
    reader = work.reader
    asked = [
        (number, mine, work.readers.ask(work.routes(number), number, share, mine))
        for number, mine in by_source(share, len(reader.sources))
    ]
    parts: list[Part] = []
    faults: list[Fault] = []
    seconds: dict[int, float] = {}
    tokens: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for number, mine, answers in asked:
        try:
            readings = [reading for answer in answers for reading in work.readers.take(answer)]
        except Exception:
            dismiss(reference for _, _, others in asked for _, reference in others)
            raise
        rows = concatenated([reading.rows for reading in readings])
        # a user's function may write into what it is given, which the store does not allow
        parts.append((mine, rows if reader.collate_fn is None else writable(rows)))
        faults += [fault for reading in readings for fault in reading.faults]
        seconds[number] = sum(reading.seconds for reading in readings)
        tokens[number] = int(share.num_tokens[mine].sum())
        sizes[number] = sum(reading.size_bytes for reading in readings)
    packed = reader.packed(share, in_order(parts, share), faults)
    return Built(parcel=to_parcel(packed), read_s=seconds, read_tokens=tokens, read_bytes=sizes)


class BuilderMetrics:
    """A builder's counters in Ray's own metrics, which Prometheus collects."""

    def __init__(self) -> None:
        self._batches = metrics.Counter("evenload_built_batches", "Micro-batches that builders made.")
        self._in = metrics.Counter("evenload_builder_in_bytes", "Bytes that builders got from readers.")
        self._out = metrics.Counter("evenload_builder_out_bytes", "Bytes that builders gave to ranks.")
        self._waiting = metrics.Gauge("evenload_builder_waiting", "Micro-batches asked for and not built.")
        self._wait_s = metrics.Counter(
            "evenload_wait_seconds", "Seconds that ranks waited for batches.", tag_keys=("rank",)
        )

    def built(self, in_bytes: int, out_bytes: int, waiting: int) -> None:
        """Add one micro-batch. Ray refuses to add nothing."""
        self._batches.inc()
        for counter, amount in ((self._in, in_bytes), (self._out, out_bytes)):
            if amount > 0:
                counter.inc(amount)
        self._waiting.set(waiting)

    def waited(self, waits: Sequence[Wait]) -> None:
        """Add ranks' waits."""
        for wait in waits:
            if wait.seconds > 0:
                self._wait_s.inc(wait.seconds, {"rank": str(wait.rank)})


def key_of(plane: str, share: Share) -> bytes:
    """Equal for the ranks that share a micro-batch, and for nothing else."""
    digest = hashlib.blake2b(repr((plane, share.step, share.first_rank, share.slot, share.fillers)).encode())
    for column in (share.source, share.row, share.start, share.num_tokens):
        digest.update(column.tobytes())
    return digest.digest()
