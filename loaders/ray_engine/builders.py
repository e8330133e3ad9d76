"""The actor that builds micro-batches, next to the ranks it serves: one copy for all that share one."""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from loaders.faults import Fault
from loaders.ray_engine.asking import Readers
from loaders.ray_engine.parcels import Parcel, to_parcel
from loaders.ray_engine.rows import concatenated
from loaders.reader import Part, Reader, by_source, in_order
from loaders.shares import Share

KEPT_PARCELS = 64
"""Shared micro-batches that wait for the rest of their ranks; later ones are built anew."""

Routes = Mapping[int, Sequence[str]]
"""Names of the readers of each source."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Built:
    """Answer of a builder: a micro-batch, and what reading it cost."""

    parcel: Parcel
    read_s: Mapping[int, float]
    """Seconds of readers' time by source."""
    read_tokens: Mapping[int, int]
    """Tokens that they gave, by source."""
    read_bytes: int
    """Bytes that came from the readers."""


class BatchBuilder:
    """Actor: packing, joins, collating. It holds no files and nothing that cannot be built again.

    Args:
        reader: a `Reader`, pickled. Its sources tell names, joins and fillers; they are not read here.
    """

    def __init__(self, reader: NDArray[np.uint8]) -> None:
        self._reader: Reader = pickle.loads(reader.data)
        self._readers = Readers(self._reader.sources, skip_faults=self._reader.skip_faults)
        self._kept: OrderedDict[bytes, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def build(self, share: Share, routes: Routes) -> Built:
        """The micro-batch of a share, for its one rank."""
        return self._build(share, routes)

    def build_shared(self, share: Share, routes: Routes) -> list[Any]:
        """Reference to a micro-batch that several ranks take: the first of them has it built."""
        return [self._once(key_of(share), lambda: ray.put(self._build(share, routes)))]

    def alive(self) -> bool:
        """Whether it answers."""
        return True

    def _build(self, share: Share, routes: Routes) -> Built:
        asked = [
            (number, mine, self._readers.ask(routes[number], number, share, mine))
            for number, mine in by_source(share, len(self._reader.sources))
        ]
        parts: list[Part] = []
        faults: list[Fault] = []
        seconds: dict[int, float] = {}
        tokens: dict[int, int] = {}
        size = 0
        for number, mine, answers in asked:
            readings = [reading for answer in answers for reading in self._readers.take(answer)]
            parts.append((mine, concatenated([reading.rows for reading in readings])))
            faults += [fault for reading in readings for fault in reading.faults]
            seconds[number] = sum(reading.seconds for reading in readings)
            tokens[number] = int(share.num_tokens[mine].sum())
            size += sum(reading.size_bytes for reading in readings)
        packed = self._reader.packed(share, in_order(parts, share), faults)
        return Built(parcel=to_parcel(packed), read_s=seconds, read_tokens=tokens, read_bytes=size)

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


def key_of(share: Share) -> bytes:
    """Equal for the ranks that share a micro-batch, and for nothing else."""
    digest = hashlib.blake2b(repr((share.step, share.first_rank, share.slot, share.fillers)).encode())
    for column in (share.source, share.row, share.start, share.num_tokens):
        digest.update(column.tobytes())
    return digest.digest()
