"""The actor that reads: it holds the file state of its sources, once for all ranks."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from loaders.faults import Fault
from loaders.pieces import read_pieces
from loaders.ray_engine.rows import plain_rows, size_of_rows
from loaders.sources.base import Rows, Source


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reading:
    """Answer of a reader: pieces of one source, and what they cost."""

    rows: Rows
    faults: tuple[Fault, ...]
    seconds: float
    size_bytes: int


class SourceReader:
    """Actor: sample-level work (read, decode, tokenise, expand media). Any reader can read any source.

    Args:
        blobs: reference, in a list, to each source, pickled; a source is opened when it is first asked for.
        capacity: tokens of the longest sample.
        skip_faults: let a sample that cannot be read keep its place.
    """

    def __init__(self, blobs: Sequence[Any], *, capacity: int, skip_faults: bool) -> None:
        self._blobs: Sequence[NDArray[np.uint8]] = ray.get(blobs[0])
        self._sources: dict[int, Source] = {}
        self.capacity = capacity
        self.skip_faults = skip_faults

    def read(
        self,
        number: int,
        row: NDArray[np.int64],
        start: NDArray[np.int64],
        num_tokens: NDArray[np.int64],
    ) -> Reading:
        """Pieces of source ``number``; see `loaders.pieces.read_pieces`."""
        started = time.perf_counter()
        rows, faults = read_pieces(
            self._source(number),
            row,
            start,
            num_tokens,
            capacity=self.capacity,
            skip_faults=self.skip_faults,
        )
        return Reading(
            rows=plain_rows(rows),
            faults=tuple(faults),
            seconds=time.perf_counter() - started,
            size_bytes=size_of_rows(rows),
        )

    def alive(self) -> bool:
        """Whether it answers."""
        return True

    def _source(self, number: int) -> Source:
        if number not in self._sources:
            self._sources[number] = pickle.loads(self._blobs[number].data)
        return self._sources[number]
