"""Samples of an endless stream, looked at as they come and held until their step is done."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.batches.labels import IGNORED
from loaders.batches.skipping import joined
from loaders.catalog import COUNTED
from loaders.faults import Fault, fault_of, must_stop, named, raise_named
from loaders.quarantine import Quarantine
from loaders.sources.base import Rows, Source
from loaders.sources.torch_dataset import DatasetSource
from packing.table import SampleTable

logger = logging.getLogger(__name__)

FATES = {"drop": "dropped", "truncate": "truncated", "split": "split"}


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
        capacity: tokens of the longest sample, or of its longest piece.
        oversize: what becomes of longer ones.
        quarantine: takes samples that cannot be used; ``None``: they raise.
        length: an entry of a sample, or a function of it, that must give its number of tokens.
        phases: entries of a sample that hold its units of work for other parts of the model.
    """

    def __init__(
        self,
        name: str,
        *,
        capacity: int,
        oversize: str,
        quarantine: Quarantine | None = None,
        length: str | Callable[[Any], int] | None = None,
        phases: Sequence[str] = (),
    ) -> None:
        self.source = Held(name)
        self.capacity = capacity
        self.oversize = oversize
        self.quarantine = quarantine
        self.length = length
        self.phases = tuple(phases)
        self.drawn = 0
        """Samples taken from the stream since the epoch began, unusable ones included."""
        self.counts: Counter[str] = Counter()
        self.cut_tokens = 0
        self._current = _Current()
        self._parser = DatasetSource(self._current, name=name)

    def take(self, stream: Iterator[Any], count: int) -> SampleTable:
        """Hold the next ``count`` usable samples instead of the last ones; fewer at the end of the stream.

        Raises as `draw` does.
        """
        self.source.held = {}
        return self.table(self.draw(stream, count))

    def draw(self, stream: Iterator[Any], count: int) -> list[int]:
        """Hold the next ``count`` usable samples as well; their numbers in the stream, fewer at its end.

        Raises:
            SampleError: the stream itself fails, or a sample cannot be used and there is no quarantine.
            ValueError: a sample is too long under ``oversize="error"``.
        """
        numbers: list[int] = []
        while len(numbers) < count:
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
                numbers.append(number)
                self.counts["kept"] += 1
        self._current.sample = None
        return numbers

    def table(self, numbers: Sequence[int]) -> SampleTable:
        """Held samples by their numbers, a row for each or for each of its pieces."""
        whole = _table({number: self.source.held[number] for number in numbers}, self.phases)
        if self.oversize != "split" or not np.any(whole.num_tokens > self.capacity):
            return whole
        return _pieces(whole, self.source.held, self.capacity)

    def counters(self) -> dict[str, int]:
        """What became of the samples so far, by `COUNTED`; tokens cut off, and samples skipped."""
        skipped = 0 if self.quarantine is None else len(self.quarantine.rejected)
        counted = {name: self.counts[name] for name in COUNTED}
        return counted | {"cut_tokens": self.cut_tokens, "skipped": skipped}

    def _looked_at(self, number: int) -> Rows | None:
        """One sample's tokens, labels and further entries; ``None`` where it is left out."""
        try:
            rows = self._parser.read(np.array([number], np.int64))
            self._check_length(number, int(rows.input_ids.size))
            units = self._units(number)
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
                    f"{self.source.origin(number)} has {size} tokens; a sample may have at most "
                    f"{self.capacity}, max_tokens times the largest CP degree. Raise max_tokens, allow a "
                    'larger degree in cp_degrees, or choose oversize="drop", "truncate" or "split".'
                )
            robbed = self.oversize == "truncate" and _labels_lie_behind(rows, self.capacity)
            self.counts["unlabelled" if robbed else FATES[self.oversize]] += 1
            if robbed and self.counts["unlabelled"] == 1:
                logger.warning(
                    "%s has all its labels behind the cut and is left out, as others like it will be. Raise "
                    'max_tokens, or choose oversize="split" to train on their ends.',
                    self.source.origin(number),
                )
            if robbed or self.oversize == "drop":
                self.cut_tokens += size
                return None
            if self.oversize == "truncate":
                self.cut_tokens += size - self.capacity
                size = self.capacity
        return Rows(
            input_ids=rows.input_ids[:size],
            offsets=np.array([0, size], np.int64),
            labels=None if rows.labels is None else rows.labels[:size],
            columns=self._columns() | units,
        )

    def _columns(self) -> dict[str, list[Any]]:
        sample = self._current.sample
        if not isinstance(sample, Mapping):
            return {}
        return {name: [value] for name, value in sample.items() if name not in ("input_ids", "labels")}

    def _check_length(self, number: int, size: int) -> None:
        """A length that is told must be that of the tokens, which the plan rests on."""
        if self.length is None:
            return
        sample = self._current.sample
        told = int(sample[self.length] if isinstance(self.length, str) else self.length(sample))
        if told != size:
            raise ValueError(
                f"{self.source.origin(number)}: its length says {told} tokens, it has {size}. Leave length= "
                "out, since a stream's tokens are counted as they come, or repair the lengths."
            )

    def _units(self, number: int) -> dict[str, list[Any]]:
        """Work for other parts of the model, 0 where a sample has no such entry."""
        sample = self._current.sample
        found: dict[str, list[Any]] = {}
        for name in self.phases:
            units = sample.get(name, 0) if isinstance(sample, Mapping) else 0
            if isinstance(units, bool) or not isinstance(units, int | np.integer) or units < 0:
                raise ValueError(
                    f"{self.source.origin(number)}: the entry {name!r} must be the sample's units of work "
                    f"for that phase, a whole number of at least 0, it is {units!r}."
                )
            found[name] = [int(units)]
        return found


def _table(held: Mapping[int, Rows], phases: Sequence[str]) -> SampleTable:
    size = len(held)
    num_tokens = np.fromiter((rows.input_ids.size for rows in held.values()), np.int64, size)
    loss = np.fromiter((_loss_tokens(rows) for rows in held.values()), np.int64, size)
    return SampleTable(
        num_tokens=num_tokens,
        source=np.zeros(size, np.int32),
        row=np.fromiter(held, np.int64, size),
        start=np.zeros(size, np.int64),
        num_loss_tokens=loss,
        phases={
            name: np.fromiter((rows.columns[name][0] for rows in held.values()), np.int64, size)
            for name in phases
        },
    )


def _loss_tokens(rows: Rows, start: int = 0, stop: int | None = None) -> int:
    """Labels of tokens ``start .. stop - 1``, a sequence of their own, that count in the loss."""
    if rows.labels is None:
        return (int(rows.input_ids.size) if stop is None else stop) - start - 1
    return int(np.count_nonzero(rows.labels[start + 1 : stop] != IGNORED))


def _labels_lie_behind(rows: Rows, capacity: int) -> bool:
    """Whether a sample has labels that count, but none of them among its first tokens."""
    return rows.labels is not None and not _loss_tokens(rows, 0, capacity) and _loss_tokens(rows) > 0


def _pieces(whole: SampleTable, held: Mapping[int, Rows], capacity: int) -> SampleTable:
    """Long samples as full pieces and a rest."""
    pieces = -(-whole.num_tokens // capacity)
    index = np.repeat(np.arange(len(whole)), pieces)
    start = (np.arange(index.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * capacity
    num_tokens = np.minimum(whole.num_tokens[index] - start, capacity)
    cut = whole.take(index)
    loss = cut.num_loss_tokens.copy()
    for at in np.flatnonzero(pieces[index] > 1).tolist():
        first = int(start[at])
        loss[at] = _loss_tokens(held[int(cut.row[at])], first, first + int(num_tokens[at]))
    return replace(cut, num_tokens=num_tokens, start=start, num_loss_tokens=loss)
