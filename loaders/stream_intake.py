"""Samples of an endless stream, looked at as they come and held until their step is done."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.faults import Fault, fault_of, must_stop, named, raise_named
from loaders.labels import IGNORED
from loaders.media.quarantine import Quarantine
from loaders.skipping import joined
from loaders.sources.base import Rows, Source
from loaders.sources.torch_dataset import DatasetSource
from packing.table import SampleTable

logger = logging.getLogger(__name__)

OVERSIZE = ("error", "drop", "truncate")
"""What may happen to a sample above ``max_tokens``; pieces of a split one would not stay in one step."""


class Held(Source):
    """The samples of the current window, by their numbers in the stream."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.held: dict[int, Rows] = {}

    def __len__(self) -> int:
        return len(self.held)

    def lengths(self) -> NDArray[np.int64]:
        """[S] Tokens of the held samples."""
        return np.array([rows.input_ids.size for rows in self.held.values()], np.int64)

    def read(self, rows: NDArray[np.int64]) -> Rows:
        """Held samples, laid end to end."""
        return joined([self.held[row] for row in rows.tolist()])

    def origin(self, row: int) -> str:
        """Name and number in the stream."""
        return f"{self.name}, sample {row}"

    def fingerprint(self) -> str:
        """A stream has none."""
        return self.name


class _Current:
    """The one sample that is being looked at, as a data set."""

    sample: Any = None

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, row: int) -> Any:
        return self.sample


class Intake:
    """Draws samples that can be used from a stream.

    Args:
        name: of the stream, for messages.
        capacity: tokens of the longest sample.
        oversize: what becomes of longer ones.
        quarantine: takes samples that cannot be used; ``None``: they raise.
    """

    def __init__(
        self, name: str, *, capacity: int, oversize: str, quarantine: Quarantine | None = None
    ) -> None:
        self.source = Held(name)
        self.capacity = capacity
        self.oversize = oversize
        self.quarantine = quarantine
        self.drawn = 0
        """Samples taken from the stream since the epoch began, unusable ones included."""
        self.counts: Counter[str] = Counter()
        self.cut_tokens = 0
        self._current = _Current()
        self._parser = DatasetSource(self._current, name=name)

    def take(self, stream: Iterator[Any], count: int) -> SampleTable:
        """Hold the next ``count`` usable samples instead of the last ones; fewer at the end of the stream.

        Raises:
            SampleError: the stream itself fails, or a sample cannot be used and there is no quarantine.
            ValueError: a sample is too long under ``oversize="error"``.
        """
        self.source.held = {}
        while len(self.source.held) < count:
            try:
                self._current.sample = next(stream)
            except StopIteration:
                break
            except Exception as error:  # a generator is over once it has raised: there is no going on
                raise named(
                    f"{self.source.origin(self.drawn)}, stage stream: {type(error).__name__}: {error}", error
                ) from error
            number, self.drawn = self.drawn, self.drawn + 1
            rows = self._looked_at(number)
            if rows is not None:
                self.source.held[number] = rows
                self.counts["kept"] += 1
        self._current.sample = None
        return _table(self.source.held)

    def _looked_at(self, number: int) -> Rows | None:
        """One sample's tokens, labels and further entries; ``None`` where it is left out."""
        try:
            rows = self._parser.read(np.array([number], np.int64))
        except Exception as error:
            if must_stop(error) or self.quarantine is None:
                raise_named(self.source, number, "read", error)
            self.quarantine.num_rows = max(self.quarantine.num_rows, self.drawn)
            fault: Fault = fault_of(self.source, number, "read", error)
            self.quarantine.add(fault)
            return None
        size = int(rows.input_ids.size)
        if size == 0:
            self.counts["empty"] += 1
            return None
        if size > self.capacity:
            if self.oversize == "error":
                raise ValueError(
                    f"{self.source.origin(number)} has {size} tokens, max_tokens is {self.capacity}. Raise "
                    'max_tokens, or choose oversize="drop" or "truncate".'
                )
            self.counts["dropped" if self.oversize == "drop" else "truncated"] += 1
            self.cut_tokens += size - (0 if self.oversize == "drop" else self.capacity)
            if self.oversize == "drop":
                return None
            size = self.capacity
        return Rows(
            input_ids=rows.input_ids[:size],
            offsets=np.array([0, size], np.int64),
            labels=None if rows.labels is None else rows.labels[:size],
            columns=self._columns(),
        )

    def _columns(self) -> Mapping[str, list[Any]]:
        sample = self._current.sample
        if not isinstance(sample, Mapping):
            return {}
        return {name: [value] for name, value in sample.items() if name not in ("input_ids", "labels")}


def _table(held: Mapping[int, Rows]) -> SampleTable:
    size = len(held)
    num_tokens = np.fromiter((rows.input_ids.size for rows in held.values()), np.int64, size)
    loss = np.fromiter((_loss_tokens(rows) for rows in held.values()), np.int64, size)
    return SampleTable(
        num_tokens=num_tokens,
        source=np.zeros(size, np.int32),
        row=np.fromiter(held, np.int64, size),
        start=np.zeros(size, np.int64),
        num_loss_tokens=loss,
    )


def _loss_tokens(rows: Rows) -> int:
    if rows.labels is None:
        return int(rows.input_ids.size) - 1
    return int(np.count_nonzero(rows.labels[1:] != IGNORED))
