"""From columns of a file to flat tokens and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from loaders.sources import _kernels
from loaders.sources.flat import AnyRuns, ColumnError, FlatChunk, RowErrors, check_columns, list_runs

LABEL_COLUMNS = ("labels", "loss_mask", "completion_mask", "assistant_masks")
"""Looked for, in this order, when the caller names no label column."""


class Encoder(Protocol):
    """Turns a table of rows into flat tokens. Picklable."""

    def wants(self, names: Sequence[str]) -> list[str]:
        """The columns to read, of those a file has. Raises ColumnError when one is missing."""

    def encode(self, table: pa.Table) -> FlatChunk:
        """Tokens and labels of every row. Raises RowErrors or ColumnError."""

    def without_carried(self) -> Encoder:
        """The same tokens, without the columns that are only handed through."""

    def json_types(self) -> Mapping[str, pa.DataType]:
        """Types of columns in files that have no schema; what is missing is taken from the values."""

    def identity(self) -> str:
        """Changes when the same file would give other tokens."""


@dataclass(frozen=True, kw_only=True)
class TokenColumns:
    """Rows that already hold token ids.

    Labels come from ``labels``: a list column of label ids (-100 where masked) or of 0/1 marks.
    ``None`` looks for `LABEL_COLUMNS`; ``False`` trains on every token.
    """

    column: str = "input_ids"
    labels: str | bool | None = None
    carry: tuple[str, ...] = ()

    def wants(self, names: Sequence[str]) -> list[str]:
        """The token column, the label column where there is one, and the carried ones."""
        label = self.label_column(names)
        needed = [self.column, *([label] if label else []), *self.carry]
        return check_columns(list(dict.fromkeys(needed)), names)

    def label_column(self, names: Sequence[str]) -> str | None:
        """The column that labels come from, or None when all tokens are trained on."""
        if isinstance(self.labels, str):
            return self.labels
        if self.labels is False:
            return None
        return next((name for name in LABEL_COLUMNS if name in names and name != self.column), None)

    def encode(self, table: pa.Table) -> FlatChunk:
        """Views of the columns; nothing is copied."""
        tokens = list_runs(table[self.column], f"column {self.column!r}")
        carried = {name: table[name] for name in self.carry}
        name = self.label_column(table.column_names)
        if name is not None:
            try:
                labels = list_runs(table[name], f"column {name!r}")
            except ColumnError:
                if self.labels is not None:
                    raise  # asked for, so it must be right; one found by its name may mean something else
            else:
                _check_equal_lengths(tokens, labels, name)
                marks = name != "labels" and _are_marks(labels)
                return FlatChunk(tokens=tokens, labels=labels, labels_are_marks=marks, columns=carried)
        return FlatChunk(tokens=tokens, columns=carried)

    def without_carried(self) -> TokenColumns:
        """The same tokens, without the columns that are only handed through."""
        return replace(self, carry=()) if self.carry else self

    def json_types(self) -> Mapping[str, pa.DataType]:
        """Tokens and labels are lists of integers."""
        return dict.fromkeys((self.column, *self._label_names()), pa.list_(pa.int64()))

    def _label_names(self) -> tuple[str, ...]:
        return (self.labels,) if isinstance(self.labels, str) else LABEL_COLUMNS

    def identity(self) -> str:
        """The columns read."""
        return f"tokens:{self.column}:{self.labels}:{','.join(self.carry)}"


def _check_equal_lengths(tokens: AnyRuns, labels: AnyRuns, name: str) -> None:
    lengths, of_labels = tokens.lengths, labels.lengths
    unequal = np.flatnonzero(lengths != of_labels)
    if unequal.size:
        reason = (
            "{} tokens but {} values in {!r}; they must be equal. Name the column with labels=, or pass "
            "labels=False to train on every token."
        )
        counts = zip(unequal.tolist(), lengths[unequal], of_labels[unequal], strict=True)
        raise RowErrors({row: reason.format(have, got, name) for row, have, got in counts})


def _are_marks(labels: AnyRuns) -> bool:
    """Whether all values are 0 or 1."""
    found = np.zeros(len(labels), bool)
    return not _kernels.out_of_range(labels.values, labels.starts, labels.lengths, 2, found)
