"""Token lists as flat arrays: what every file format is decoded to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loaders.batches.labels import IGNORED
from loaders.sources import _kernels
from packing.checks import nearest

MAX_TOKEN_ID = 2**31
"""Token ids are kept as int32, so they lie in 0..MAX_TOKEN_ID-1."""
TEXT_COLUMNS = ("text", "content", "messages", "conversations", "prompt")
"""Usual names of columns that were never tokenised."""


class RowErrors(ValueError):
    """Some rows cannot be used: ``reasons`` by row of the table they were found in."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


class ColumnError(ValueError):
    """A whole file lacks what is needed: no such column, or one of another type."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Runs:
    """Lists of integers, one a row, somewhere in one flat array. Axes: N = rows, T = the array's values."""

    values: NDArray[np.integer[Any]]
    """[T] All values; some may belong to no row, and those of a span must not be touched."""
    starts: NDArray[np.int64]
    """[N] Index of each row's first value."""
    lengths: NDArray[np.int64]
    """[N] Values of each row; 0 for empty and null rows."""
    num_null: int = 0
    """Rows that were null rather than empty."""
    is_span: bool = False
    """Whether ``values`` is a window over memory of many buffers, valid only where rows lie."""

    def take(self, rows: NDArray[np.int64]) -> Runs:
        """Those rows, in that order."""
        return replace(self, starts=self.starts[rows], lengths=self.lengths[rows], num_null=0)

    def over(self, values: NDArray[np.integer[Any]] | None = None) -> Runs:
        """The same rows over other values of equal layout; ``None``: over these, as a span."""
        if values is None:
            return replace(self, is_span=True)
        return replace(self, values=values)

    def __len__(self) -> int:
        return int(self.starts.size)

    @property
    def size_bytes(self) -> int:
        """Memory held by the runs themselves; a span's values are mapped, not held."""
        return int((0 if self.is_span else self.values.nbytes) + self.starts.nbytes + self.lengths.nbytes)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OffsetRuns:
    """`Runs` told by Arrow's own offsets, of which nothing is copied: ten million rows take a few bytes.

    Axes: P = pieces (record batches) that the rows come in, N = rows, T = values.
    """

    values: NDArray[np.integer[Any]]
    """[T] All values, or the window of memory over those of all pieces."""
    offsets: NDArray[np.integer[Any]]
    """Where rows begin within their piece, one more a piece than it has rows, or the window over them."""
    first_row: NDArray[np.int64]
    """[P + 1] Row that each piece begins with."""
    first_offset: NDArray[np.int64]
    """[P] Where its offsets begin."""
    first_value: NDArray[np.int64]
    """[P] Where its values begin."""
    is_span: bool = False
    """Whether the values are a window, valid only where rows lie."""
    num_null: int = 0

    def take(self, rows: NDArray[np.int64]) -> Runs:
        """Those rows, in that order."""
        if self.first_offset.size == 1:
            at, base = rows + self.first_offset[0], self.first_value[0]
        else:
            piece = np.searchsorted(self.first_row, rows, side="right") - 1
            at, base = rows - self.first_row[piece] + self.first_offset[piece], self.first_value[piece]
        begins = self.offsets[at].astype(np.int64)
        lengths = self.offsets[at + 1] - begins
        return Runs(values=self.values, starts=begins + base, lengths=lengths, is_span=self.is_span)

    def over(self, values: NDArray[np.integer[Any]] | None = None) -> OffsetRuns:
        """The same rows over other values of equal layout; ``None``: over these, as a span."""
        if values is None:
            return replace(self, is_span=True)
        return replace(self, values=values)

    def __len__(self) -> int:
        return int(self.first_row[-1])

    @property
    def starts(self) -> NDArray[np.int64]:
        """[N] Index of each row's first value; made anew."""
        return np.concatenate(
            [part[:-1] + base for part, base in zip(self._parts(), self.first_value.tolist(), strict=True)]
        )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[N] Values of each row; made anew."""
        return np.concatenate([np.diff(part) for part in self._parts()])

    def _parts(self) -> list[NDArray[np.int64]]:
        """The offsets of each piece."""
        counts = np.diff(self.first_row) + 1
        bounds = zip(self.first_offset.tolist(), counts.tolist(), strict=True)
        return [self.offsets[first : first + count].astype(np.int64) for first, count in bounds]

    @property
    def size_bytes(self) -> int:
        """Memory held; of a span what its pieces take, the rest is mapped."""
        held = self.first_row.nbytes + self.first_offset.nbytes + self.first_value.nbytes
        return int(held + (0 if self.is_span else self.values.nbytes + self.offsets.nbytes))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SelectedRuns:
    """Some rows of others, looked up when they are asked for. Axis: N = rows."""

    below: AnyRuns
    rows: NDArray[np.int64]
    """[N] Rows below, perhaps mapped."""
    num_null: int = 0

    def take(self, rows: NDArray[np.int64]) -> Runs:
        """Those rows, in that order."""
        return self.below.take(self.rows[rows])

    def over(self, values: NDArray[np.integer[Any]] | None = None) -> SelectedRuns:
        """The same rows over other values of equal layout; ``None``: over these, as a span."""
        return replace(self, below=self.below.over(values))

    def __len__(self) -> int:
        return int(self.rows.size)

    @property
    def values(self) -> NDArray[np.integer[Any]]:
        """Those below."""
        return self.below.values

    @property
    def is_span(self) -> bool:
        """As below."""
        return self.below.is_span

    @property
    def starts(self) -> NDArray[np.int64]:
        """[N] Index of each row's first value; made anew."""
        return self.below.take(self.rows).starts

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[N] Values of each row; made anew."""
        return self.below.take(self.rows).lengths

    @property
    def size_bytes(self) -> int:
        """Memory held below; which rows is mapped, or held by the data set."""
        return self.below.size_bytes


AnyRuns = Runs | OffsetRuns | SelectedRuns


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FlatChunk:
    """N rows of tokens, with labels where some tokens are masked."""

    tokens: AnyRuns
    labels: AnyRuns | None = None
    """Unshifted labels, -100 where masked, or marks; runs as long as those of the tokens."""
    labels_are_marks: bool = False
    """Whether ``labels`` says 0 for masked and 1 for trained, rather than an id."""
    columns: Mapping[str, pa.ChunkedArray] = field(default_factory=lambda: MappingProxyType({}))
    """Further columns, N values each, or more where ``column_rows`` says which."""
    column_rows: NDArray[np.int64] | None = None
    """[N] Their values for each row; ``None``: one after another."""
    rejects: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """What is wrong with which row; they have length 0."""

    @property
    def size_bytes(self) -> int:
        """Memory it holds, for a cache that is bounded by bytes."""
        size = self.tokens.size_bytes + (0 if self.labels is None else self.labels.size_bytes)
        return size + sum(int(column.nbytes) for column in self.columns.values())

    def take(self, rows: NDArray[np.int64]) -> FlatChunk:
        """Those rows, in that order, looked up when they are read; rejects must be none."""
        assert not self.rejects
        return replace(
            self,
            tokens=SelectedRuns(below=self.tokens, rows=rows),
            labels=None if self.labels is None else SelectedRuns(below=self.labels, rows=rows),
            column_rows=rows if self.column_rows is None else self.column_rows[rows],
        )

    def column_values(self, name: str, rows: NDArray[np.int64]) -> list[Any]:
        """Values of a further column, one for each of ``rows``."""
        index = rows if self.column_rows is None else self.column_rows[rows]
        found: list[Any] = self.columns[name].take(as_arrow(index)).to_pylist()
        return found

    def num_loss_tokens(self) -> NDArray[np.int64]:
        """[N] Labels that count: not masked, and not the first of their row, which nothing predicts."""
        if self.labels is None:
            return np.maximum(self.tokens.lengths - 1, 0)
        counts = np.zeros(len(self.labels), np.int64)
        masked = 0 if self.labels_are_marks else IGNORED
        _kernels.count_kept(self.labels.values, self.labels.starts, self.labels.lengths, masked, counts)
        return counts


def as_numpy(array: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """A view of numbers without nulls. Arrow's own ``to_numpy`` imports pandas: half a second."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    assert not array.null_count
    dtype = np.dtype(array.type.to_pandas_dtype())
    data = array.buffers()[1]
    if data is None:
        return np.zeros(0, dtype)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)


def as_arrow(values: NDArray[Any]) -> pa.Array:
    """A view of numbers as an Arrow array; ``pa.array`` would import pandas, too."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, [None, pa.py_buffer(values)])


def null_marks(array: pa.Array) -> NDArray[np.bool_]:
    """Which values are null."""
    return as_numpy(array.is_null().cast(pa.uint8())).astype(bool)


def list_runs(column: pa.ChunkedArray, what: str) -> AnyRuns:
    """The runs of an Arrow list column, without a copy of its values where they are plain integers.

    Raises:
        ColumnError: the column is not a list of integers (or booleans).
        RowErrors: nulls stand among the values of rows.
    """
    whole = _offset_runs(column.chunks)
    if whole is not None:
        return whole
    reasons: dict[int, str] = {}
    pieces = []
    first_row = 0
    for array in column.chunks:
        try:
            pieces.append(_array_runs(array, what))
        except RowErrors as error:
            reasons.update({first_row + row: reason for row, reason in error.reasons.items()})
        first_row += len(array)
    if reasons:
        raise RowErrors(reasons)
    if not pieces:
        return _array_runs(pa.array([], type=column.type), what)
    return pieces[0] if len(pieces) == 1 else _joined(pieces)


def _offset_runs(arrays: Sequence[pa.Array]) -> OffsetRuns | None:
    """The runs of lists of integers without nulls, where they lie; ``None`` where it takes more than that."""
    for array in arrays:
        kind = array.type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            return None
        if not pa.types.is_integer(kind.value_type) or array.null_count or array.values.null_count:
            return None
    offsets, values = [as_numpy(one.offsets) for one in arrays], [as_numpy(one.values) for one in arrays]
    if len({one.dtype for one in offsets}) != 1 or len({one.dtype for one in values}) != 1:
        return None
    rows = np.concatenate(([0], np.cumsum([one.size - 1 for one in offsets]))).astype(np.int64)
    if len(arrays) == 1:
        zero = np.zeros(1, np.int64)
        return OffsetRuns(
            values=values[0], offsets=offsets[0], first_row=rows, first_offset=zero, first_value=zero
        )
    full = [number for number, one in enumerate(values) if one.size]
    spans = [_Span(offsets), _Span([values[number] for number in full] or values[:1])]
    if not all(span.is_aligned for span in spans):
        return None
    first_value = np.zeros(len(arrays), np.int64)
    if full:
        first_value[full] = spans[1].shifts
    return OffsetRuns(
        values=np.asarray(spans[1]),
        offsets=np.asarray(spans[0]),
        first_row=rows,
        first_offset=np.array(spans[0].shifts, np.int64),
        first_value=first_value,
        is_span=True,
    )


def _array_runs(array: pa.Array, what: str) -> Runs:
    kind = array.type
    if pa.types.is_null(kind):
        zeros = np.zeros(len(array), np.int64)
        return Runs(values=np.zeros(0, np.int32), starts=zeros, lengths=zeros, num_null=len(array))
    if pa.types.is_fixed_size_list(kind):
        array = array.cast(pa.large_list(kind.value_type))
        kind = array.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if is_list and pa.types.is_null(kind.value_type):  # only empty lists so far
        array = array.cast(pa.large_list(pa.int32()))
        kind = array.type
    if is_list and pa.types.is_boolean(kind.value_type):
        array = array.cast(pa.large_list(pa.uint8()))
        kind = array.type
    if not is_list or not pa.types.is_integer(kind.value_type):
        raise ColumnError(f"{what} must be a list of integers, it is {kind}")
    offsets = as_numpy(array.offsets).astype(np.int64, copy=False)
    starts, lengths = offsets[:-1], np.diff(offsets)
    if array.null_count:
        lengths = np.where(null_marks(array), 0, lengths)
    values = array.values
    if values.null_count:
        _refuse_nulls(values, starts, lengths, what)
        values = values.fill_null(0)  # the nulls lie outside every row
    flat = as_numpy(values)
    return Runs(values=flat, starts=starts, lengths=lengths, num_null=int(array.null_count))


def _refuse_nulls(values: pa.Array, starts: NDArray[np.int64], lengths: NDArray[np.int64], what: str) -> None:
    is_null = null_marks(values)
    nulls = np.concatenate(([0], np.cumsum(is_null, dtype=np.int64)))
    bad = np.flatnonzero(nulls[starts + lengths] - nulls[starts])
    if bad.size:
        raise RowErrors({int(row): f"{what} holds a null among its values" for row in bad})


class _Span:
    """Memory from the first to the last of several arrays, seen as one array; keeps them alive."""

    def __init__(self, arrays: list[NDArray[Any]]) -> None:
        addresses = [array.__array_interface__["data"][0] for array in arrays]
        item = arrays[0].dtype
        base = min(addresses)
        end = max(address + array.nbytes for address, array in zip(addresses, arrays, strict=True))
        self.arrays = arrays
        self.shifts = [(address - base) // item.itemsize for address in addresses]
        self.is_aligned = all((address - base) % item.itemsize == 0 for address in addresses)
        self.__array_interface__ = {
            "data": (base, True),
            "shape": ((end - base) // item.itemsize,),
            "typestr": item.str,
            "version": 3,
        }


def _joined(pieces: list[Runs]) -> Runs:
    """One set of runs over all pieces.

    A memory-mapped data set has a record batch for every 1,000 rows, so that a random read of 512 rows
    touches nearly as many pieces: a window over all of them lets one call gather the rows, copying nothing.
    """
    full = [piece for piece in pieces if piece.values.size] or pieces[:1]
    lengths = np.concatenate([piece.lengths for piece in pieces])
    num_null = sum(piece.num_null for piece in pieces)
    if len({piece.values.dtype for piece in full}) == 1:
        span = _Span([piece.values for piece in full])
        if span.is_aligned:
            shift = dict(zip(map(id, full), span.shifts, strict=True))
            starts = np.concatenate([piece.starts + shift.get(id(piece), 0) for piece in pieces])
            values = np.asarray(span)
            return Runs(values=values, starts=starts, lengths=lengths, num_null=num_null, is_span=True)
    sizes = np.cumsum([0] + [piece.values.size for piece in pieces])
    starts = np.concatenate([piece.starts + size for piece, size in zip(pieces, sizes[:-1], strict=True)])
    values = np.concatenate([piece.values for piece in pieces])
    return Runs(values=values, starts=starts, lengths=lengths, num_null=num_null)


def check_columns(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns, when all are there. Raises ColumnError."""
    for name in columns:
        if name not in names:
            raise ColumnError(
                f"no column {name!r}; the columns are {', '.join(names) or '(none)'}.{nearest(name, names)}"
                f"{_of_text(name, names)}"
            )
    return list(columns)


def _of_text(name: str, names: Sequence[str]) -> str:
    """A way out for data that was never tokenised."""
    if name != "input_ids" or not any(one in names for one in TEXT_COLUMNS):
        return ""
    return (
        " Text must be token ids first: `evenload pack ... --tokenizer tokenizer.json` writes them, column= "
        "names them where they are there by another name."
    )
