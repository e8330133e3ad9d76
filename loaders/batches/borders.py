"""Tokens that mark where a sample begins and ends: one of each, counted before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.batches.joins import Join
from loaders.batches.labels import IGNORED
from loaders.faults import raise_named
from loaders.sources.base import Blocks, Rows, Source

MOST_ID = 2**31 - 1
"""Ids are kept as 32-bit numbers."""

PRESENT = ("error", "keep")
CHUNK = 4096
"""Rows that are looked at together where the data is read beforehand."""


@dataclass(frozen=True, slots=True, eq=False)
class _Marks:
    """Which of N rows are given which token. [N] each."""

    before: NDArray[np.bool_]
    behind: NDArray[np.bool_]


class Bordered(Source):
    """A source whose samples begin with one ``bos`` and end with one ``eos``.

    An empty row stays empty. BOS is a sample's first token, so nothing predicts it. What it adds a label to
    and whether EOS is a label follow from the row's number of labels, which is known beforehand:

    - every token but the first is a label (plain text, or a row of one token): so are then the row's own
      first token, behind BOS, and EOS;
    - some are masked (a prompt): the first token stays masked, EOS is a label;
    - all are masked: EOS is masked as well.

    Args:
        source: whose rows may be cut; for samples with media, put this inside the `MultimodalSource`.
        bos: id of the token that a sample begins with; ``None``: as it is.
        eos: id of the token that it ends with; ``None``: as it is.
        present: a row that has the token already: ``"error"`` raises when it is read, so lengths need no
            reading; ``"keep"`` leaves it, for which the rows are read once beforehand.

    Raises:
        ValueError: neither token given, an id below 0, or a source whose rows belong to media.
    """

    def __init__(
        self, source: Source, *, bos: int | None = None, eos: int | None = None, present: str = "error"
    ) -> None:
        if bos is None and eos is None:
            raise ValueError("pass bos= or eos=, the id of a token to begin or end samples with.")
        for name, token in (("bos", bos), ("eos", eos)):
            if token is not None and not _is_id(token):
                raise ValueError(f"{name} must be the id of a token, 0..{MOST_ID}, got {token!r}.")
        if present not in PRESENT:
            raise ValueError(f"present must be one of {', '.join(PRESENT)}, got {present!r}.")
        if not source.divisible or any(join.per_token for join in source.joins().values()):
            raise ValueError(
                f"{source.name} lays out its tokens itself, so none can be added around them. Add them to "
                "the text instead: MultimodalSource(Bordered(text, bos=..., eos=...), rules)."
            )
        self.source, self.bos, self.eos, self.present = source, bos, eos, present
        self.name = source.name
        self._looked: _Marks | None = None

    def __len__(self) -> int:
        return len(self.source)

    def lengths(self) -> NDArray[np.int64]:
        """[S] Tokens of each row, the added ones included; 0 stays 0."""
        marks = self._marks()
        return self.source.lengths() + marks.before + marks.behind

    def loss_tokens(self) -> NDArray[np.int64]:
        """[S] Labels of each row that count in the loss, by the rules above."""
        num_tokens, counted = self.source.lengths(), self.source.loss_tokens()
        marks = self._marks()
        return counted + _more_labels(num_tokens, counted, marks)

    @property
    def trains_on_all(self) -> bool:
        """As the source does: then the added tokens are labels too, but for BOS."""
        return self.source.trains_on_all

    @property
    def knows_loss_tokens(self) -> bool:
        """As the source does."""
        return self.source.knows_loss_tokens

    def phases(self) -> Mapping[str, NDArray[np.int64]]:
        """Those of the source."""
        return self.source.phases()

    def joins(self) -> Mapping[str, Join]:
        """Those of the source; none of them is of tokens."""
        return self.source.joins()

    def blocks(self) -> Blocks | None:
        """Those of the source."""
        return self.source.blocks()

    def origin(self, row: int) -> str:
        """Where the row comes from."""
        return self.source.origin(row)

    def rejects(self) -> Sequence[Any]:
        """Rows that the source left out when their lengths were counted."""
        told: Sequence[Any] = self.source.rejects() if hasattr(self.source, "rejects") else ()
        return told

    def fingerprint(self) -> str:
        """The source's, and what is added: lengths and so the steps follow from it."""
        return f"{self.source.fingerprint()}|bos={self.bos} eos={self.eos} {self.present}"

    def read(self, rows: NDArray[np.int64]) -> Rows:
        """The rows with their tokens around them.

        Raises:
            ValueError: a row has the token already, under ``present="error"``; names the row.
        """
        held = self.source.read(rows)
        if self.present == "error":
            self._refuse_doubles(held, rows)
            marks = self._every(np.diff(held.offsets))
        else:
            looked = self._marks()
            marks = _Marks(looked.before[rows], looked.behind[rows])
        return _with_marks(held, marks, self.bos, self.eos)

    def _every(self, num_tokens: NDArray[np.int64]) -> _Marks:
        filled = num_tokens > 0
        none = np.zeros(filled.size, np.bool_)
        return _Marks(none if self.bos is None else filled, none if self.eos is None else filled)

    def _marks(self) -> _Marks:
        if self.present == "error":
            return self._every(self.source.lengths())
        if self._looked is None:
            self._looked = self._look()
        return self._looked

    def _look(self) -> _Marks:
        """Read all rows once for their first and last tokens; memory is two bytes a row."""
        every = self._every(self.source.lengths())
        marks = _Marks(every.before.copy(), every.behind.copy())
        filled = np.flatnonzero(marks.before | marks.behind)
        for start in range(0, filled.size, CHUNK):
            rows = filled[start : start + CHUNK]
            held = self.source.read(rows)
            marks.before[rows] &= held.input_ids[held.offsets[:-1]] != self.bos
            marks.behind[rows] &= held.input_ids[held.offsets[1:] - 1] != self.eos
        return marks

    def _refuse_doubles(self, held: Rows, rows: NDArray[np.int64]) -> None:
        filled = np.flatnonzero(np.diff(held.offsets))
        firsts, lasts = held.offsets[:-1][filled], held.offsets[1:][filled] - 1
        for name, token, places, how in (
            ("bos", self.bos, firsts, "begins"),
            ("eos", self.eos, lasts, "ends"),
        ):
            if token is None:
                continue
            double = np.flatnonzero(held.input_ids[places] == token)
            double = np.array([at for at in double.tolist() if int(filled[at]) not in held.rejects], np.int64)
            if double.size:
                row = int(rows[filled[double[0]]])
                error = ValueError(
                    f"{self.origin(row)} already {how} with token {token}, which {name}= would double. "
                    f"Leave {name} out if all samples have it, or open the data as "
                    f'Bordered(source, {name}={token}, present="keep"), which reads it once beforehand.'
                )
                raise_named(self.source, row, "read", error)


def _more_labels(
    num_tokens: NDArray[np.int64], counted: NDArray[np.int64], marks: _Marks
) -> NDArray[np.int64]:
    """[N] labels that the added tokens bring: one for a first token behind BOS, one for EOS."""
    unmasked = counted == np.maximum(num_tokens - 1, 0)
    more: NDArray[np.int64] = (marks.before & unmasked).astype(np.int64)
    more += marks.behind & (unmasked | (counted > 0))
    return more


def _with_marks(held: Rows, marks: _Marks, bos: int | None, eos: int | None) -> Rows:
    num_tokens = np.diff(held.offsets)
    offsets = np.concatenate([[0], np.cumsum(num_tokens + marks.before + marks.behind)])
    starts, ends = offsets[:-1][marks.before], offsets[1:][marks.behind] - 1
    dtype = np.promote_types(held.input_ids.dtype, np.min_scalar_type(max(bos or 0, eos or 0)))
    tokens: NDArray[np.integer[Any]] = np.empty(int(offsets[-1]), dtype)
    own = np.ones(tokens.size, np.bool_)
    own[starts] = own[ends] = False
    tokens[own] = held.input_ids
    tokens[starts], tokens[ends] = bos or 0, eos or 0
    labels = held.labels
    if labels is not None:
        labels = _labels(held, marks, own, starts, ends, eos or 0)
    return replace(held, input_ids=tokens, offsets=offsets, labels=labels)


def _labels(
    held: Rows,
    marks: _Marks,
    own: NDArray[np.bool_],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    eos: int,
) -> NDArray[np.int64]:
    assert held.labels is not None
    num_tokens = np.diff(held.offsets)
    running = np.concatenate([[0], np.cumsum(held.labels != IGNORED)])
    second = np.minimum(held.offsets[:-1] + 1, held.offsets[1:])
    counted = running[held.offsets[1:]] - running[second]
    unmasked = counted == np.maximum(num_tokens - 1, 0)
    unmasked[list(held.rejects)] = False
    labels: NDArray[np.int64] = np.full(own.size, IGNORED, np.int64)
    labels[own] = held.labels
    first = np.flatnonzero(own)[held.offsets[:-1][marks.before]]  # the rows' own first tokens, behind BOS
    labels[first] = np.where(unmasked[marks.before], held.input_ids[held.offsets[:-1][marks.before]], IGNORED)
    labels[ends] = np.where((unmasked | (counted > 0))[marks.behind], eos, IGNORED)
    return labels


def _is_id(token: Any) -> bool:
    number = isinstance(token, int | float | np.integer) and not isinstance(token, bool)
    return number and 0 <= token <= MOST_ID and int(token) == token
