"""Any map-style torch `Dataset`: samples made by the user's own code, one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from loaders.batches.labels import IGNORED
from loaders.faults import Fault, fault_of, must_stop, raise_named
from loaders.sources.base import Rows, Source
from loaders.sources.flat import MAX_TOKEN_ID
from loaders.workers.slate import note

T = TypeVar("T")
Length = str | Callable[[Any], int] | NDArray[np.integer[Any]] | Sequence[int] | None


class DatasetSource(Source):
    """Rows of a map-style data set. A sample is a mapping, a pair (tokens, labels), or the tokens themselves.

    Lengths come from ``length``: the name of an entry of the sample, a function of the sample, or all of
    them as an array; without it every sample is made once, to count its tokens.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        column: str = "input_ids",
        labels: str | bool | None = None,
        carry: Sequence[str] = (),
        name: str,
        length: Length = None,
        max_token_id: int = MAX_TOKEN_ID,
        on_bad: str = "error",
    ) -> None:
        self.on_bad = on_bad
        self.faults: list[Fault] = []
        self.dataset = dataset
        self.column = column
        self.labels = labels
        self.carry = tuple(carry)
        self.name = name
        self.length = length
        self.max_token_id = max_token_id
        self._scanned: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def lengths(self) -> NDArray[np.int64]:
        """[S] Tokens of each sample; computed once a process."""
        return self._scan()[0]

    def loss_tokens(self) -> NDArray[np.int64]:
        """[S] Labels that count. Where ``length`` is given: all but the first token."""
        return self._scan()[1]

    @property
    def knows_loss_tokens(self) -> bool:
        """Not where lengths are given, since no sample is looked at then, unless there are no labels."""
        return self.length is None or self.labels is False

    def _scan(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._scanned is None:
            if self.length is None:
                self._scanned = self._count_samples()
            else:
                lengths = self._given_lengths()
                self._scanned = lengths, np.maximum(lengths - 1, 0)
        return self._scanned

    def _count_samples(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        lengths, loss_tokens = np.zeros(len(self), np.int64), np.zeros(len(self), np.int64)
        for row in range(len(self)):
            lengths[row], loss_tokens[row] = self._tolerated(row, self._count_sample, (0, 0))
        return lengths, loss_tokens

    def _count_sample(self, row: int) -> tuple[int, int]:
        sample = self.dataset[row]
        size = int(self._tokens(sample, row).size)
        labels = self._labels(sample, row, size)
        return size, max(size - 1, 0) if labels is None else int((labels[1:] != IGNORED).sum())

    def _tolerated(self, row: int, find: Callable[[int], T], otherwise: T) -> T:
        """What ``find`` says of a row; under ``on_bad="skip"`` a row that it fails on is left out."""
        try:
            return find(row)
        except Exception as error:
            if must_stop(error) or self.on_bad != "skip":
                raise_named(self, row, "length", error)
            self.faults.append(fault_of(self, row, "length", error))
            return otherwise

    def rejects(self) -> tuple[Fault, ...]:
        """Rows left out under ``on_bad="skip"``, since their length could not be found; it is 0."""
        self._scan()
        return tuple(self.faults)

    def _given_lengths(self) -> NDArray[np.int64]:
        if callable(self.length) or isinstance(self.length, str):
            made = (self._tolerated(row, self._asked_length, 0) for row in range(len(self)))
            found = np.fromiter(made, np.int64, len(self))
        else:
            given = np.asarray(self.length)
            if given.shape != (len(self),) or not np.issubdtype(given.dtype, np.integer):
                got = f"it has shape {given.shape}, {given.dtype}"
                raise ValueError(f"{self.name}: length must hold {len(self)} integers, one a sample; {got}")
            found = given.astype(np.int64)
        if found.size and found.min() < 0:
            row = int(np.argmin(found))
            raise ValueError(f"{self.origin(row)}: a length must be 0 or more, it is {found[row]}")
        return found

    def _asked_length(self, row: int) -> int:
        sample = self.dataset[row]
        if isinstance(self.length, str):
            return int(self._entry(sample, self.length, row))
        assert callable(self.length)
        return int(self.length(sample))

    def read(self, rows: NDArray[np.int64]) -> Rows:
        """Make the samples and lay their tokens end to end."""
        tokens, labels = [], []
        columns: dict[str, list[Any]] = {name: [] for name in self.carry}
        asked = np.asarray(rows, np.int64)
        if asked.size and (asked.min() < 0 or asked.max() >= len(self)):
            raise IndexError(
                f"{self.name} has samples 0..{len(self) - 1}, asked for {asked.min()}..{asked.max()}"
            )
        for row in asked.tolist():
            note(self, row)
            sample = self.dataset[row]
            tokens.append(self._tokens(sample, row))
            labels.append(self._labels(sample, row, tokens[-1].size))
            for name in self.carry:
                columns[name].append(self._entry(sample, name, row))
        offsets = np.concatenate(([0], np.cumsum([piece.size for piece in tokens], dtype=np.int64)))
        input_ids = np.concatenate(tokens) if tokens else np.zeros(0, np.int64)
        all_labels = None
        if any(piece is not None for piece in labels):
            pieces = zip(tokens, labels, strict=True)
            all_labels = np.concatenate([ids if own is None else own for ids, own in pieces])
        return Rows(input_ids=input_ids, offsets=offsets, labels=all_labels, columns=columns)

    def _tokens(self, sample: Any, row: int) -> NDArray[np.int64]:
        if isinstance(sample, Mapping):
            value = self._entry(sample, self.column, row)
        elif isinstance(sample, tuple) and len(sample) == 2:
            value = sample[0]
        else:
            value = sample
        ids = self._integers(value, "tokens", row)
        if ids.size and (ids.min() < 0 or ids.max() >= self.max_token_id):
            wrong = ids[(ids < 0) | (ids >= self.max_token_id)][0]
            raise ValueError(
                f"{self.origin(row)}: token ids must be 0..{self.max_token_id - 1}, there is {wrong}."
            )
        return ids

    def _labels(self, sample: Any, row: int, num_tokens: int) -> NDArray[np.int64] | None:
        value = None
        if isinstance(sample, Mapping) and self.labels is not False:
            name = self.labels if isinstance(self.labels, str) else "labels"
            value = self._entry(sample, name, row) if isinstance(self.labels, str) else sample.get(name)
        elif isinstance(sample, tuple) and len(sample) == 2:
            value = sample[1]
        if value is None or (self.labels is None and np.ndim(value) == 0):  # a class, not a label a token
            return None
        labels = self._integers(value, "labels", row)
        if labels.size != num_tokens:
            raise ValueError(
                f"{self.origin(row)}: {num_tokens} tokens but {labels.size} labels; they must be equal"
            )
        return labels

    def _integers(self, value: Any, what: str, row: int) -> NDArray[np.int64]:
        array = np.asarray(value)
        if array.size == 0:
            return np.zeros(0, np.int64)
        if not (np.issubdtype(array.dtype, np.integer) or array.dtype == bool) or array.ndim != 1:
            raise ValueError(
                f"{self.origin(row)}: {what} must be a list of integers, "
                f"they are {array.dtype} of shape {array.shape}"
            )
        return array.astype(np.int64, copy=False)

    def _entry(self, sample: Any, name: str, row: int) -> Any:
        if not isinstance(sample, Mapping):
            raise ValueError(
                f"{self.origin(row)}: {name!r} needs a mapping as sample, it is {type(sample).__name__}"
            )
        if name not in sample:
            raise ValueError(
                f"{self.origin(row)}: no entry {name!r}; there are {', '.join(map(str, sample))}"
            )
        return sample[name]

    def origin(self, row: int) -> str:
        """Name and index."""
        return f"{self.name}, sample {row}"

    def fingerprint(self) -> str:
        """Kind, size and lengths: what can be known of code that makes samples."""
        what = f"{type(self.dataset).__qualname__}:{len(self)}:{self.column}"
        digest = hashlib.blake2b(what.encode(), digest_size=16)
        digest.update(self.lengths().tobytes())
        return digest.hexdigest()
