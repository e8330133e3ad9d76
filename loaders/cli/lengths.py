"""Lengths of a file's samples: from a column of lengths, plain numbers, or counted from tokens."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packing.checks import nearest

LENGTH_COLUMNS = ("length", "lengths", "num_tokens", "n_tokens", "seq_length", "seq_len", "input_length")
"""Names that a column of lengths goes by, tried in this order."""

TOKENS = "input_ids"
"""The token column where none is named."""
_TABLES = (".parquet", ".arrow", ".feather", ".csv")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FileLengths:
    """Lengths of several files, one after the other. Axis: S = rows of all files."""

    tokens: NDArray[np.int64]
    """[S]"""
    kind: str
    """Where they came from: ``column 'length'``, ``tokens of 'input_ids'``, ``numbers``."""
    starts: list[int]
    """First row of each file."""
    namers: list[Callable[[int], str]]
    """What to call a row of each file, counted from 0 in it."""

    def name(self, row: int) -> str:
        """Where a row comes from: ``corpus.parquet, row 17``."""
        file = bisect_right(self.starts, row) - 1
        return self.namers[file](row - self.starts[file])


def read_lengths(files: Sequence[str], *, column: str = TOKENS, length: str | None = None) -> FileLengths:
    """Tokens of each row of ``files``.

    Args:
        files: ``.npy`` (an array of lengths), ``.txt`` (one number a line), tables with a column of lengths,
            or anything that `loaders.open_source` opens.
        column: the column of token ids, where there is no column of lengths.
        length: the column of lengths; by default one of `LENGTH_COLUMNS`, if the file has no token column.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: no lengths found, none above 0, or lengths that are not whole numbers; names the file.
    """
    parts, kinds, namers, starts = [], [], [], [0]
    for file in files:
        tokens, kind, namer = _read_file(file, column, length)
        parts.append(tokens)
        kinds.append(kind)
        namers.append(namer)
        starts.append(starts[-1] + tokens.size)
    tokens = np.concatenate(parts)
    if not tokens.any():
        raise ValueError(
            f"there are no samples with tokens in {', '.join(files)} ({tokens.size} rows). "
            "Check the path and the column."
        )
    return FileLengths(
        tokens=tokens,
        kind=", ".join(dict.fromkeys(kinds)),
        starts=starts[:-1],
        namers=namers,
    )


def _read_file(
    file: str, column: str, length: str | None
) -> tuple[NDArray[np.int64], str, Callable[[int], str]]:
    """([S] tokens, where they came from, what to call a row)."""
    suffix = Path(file).suffix.lower()
    namer = partial("{}, row {}".format, file)
    if suffix in (".npy", ".txt"):
        read = _array_numbers if suffix == ".npy" else _text_numbers
        return _checked(read(file), file), "numbers", namer
    name = _length_column(file, suffix, column, length)
    if name is not None:
        return _checked(_read_column(file, suffix, name), file), f"column {name!r}", namer
    if suffix == ".csv":
        raise ValueError(
            f"{file}: a .csv can give lengths only, one number a row in a column; {column!r} would be "
            "tokens. Name the column with --length."
        )
    from loaders.sources import open_source

    source = open_source(file, column=column, length=length)
    kind = f"column {length!r}" if length else f"tokens of {column!r}"
    return source.lengths(), kind, source.origin


def _array_numbers(file: str) -> Any:
    _must_be_file(file)
    try:
        return np.load(file)
    except (ValueError, EOFError) as error:
        raise ValueError(
            f"{file} must be a whole array of numbers, as numpy.save writes it, and cannot be read as one. "
            "Write it again."
        ) from error


def _must_be_file(file: str) -> None:
    if not Path(file).is_file():
        what = "is a folder" if Path(file).is_dir() else f"does not exist (looked in {Path.cwd()})"
        raise FileNotFoundError(f"{file} must be a file of lengths, it {what}.")


def _text_numbers(file: str) -> Any:
    _must_be_file(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of empty files, which are told of below
            return np.loadtxt(file, ndmin=1)
    except ValueError as error:
        raise ValueError(f"{file} must hold one number of tokens a line: {error}") from error


def _length_column(file: str, suffix: str, column: str, length: str | None) -> str | None:
    """The column of lengths of a single table file; ``None`` where tokens must be counted."""
    if suffix == ".csv":
        _must_be_file(file)
    if suffix not in _TABLES or not Path(file).is_file():
        return None
    names = _column_names(file, suffix)
    if length is not None:
        if length not in names:
            raise ValueError(
                f"{file} has no column {length!r}; it has {', '.join(names)}.{nearest(length, names)}"
            )
        return length
    if column in names:
        return None
    found = next((name for name in LENGTH_COLUMNS if name in names), None)
    if column != TOKENS:  # asked for, so a column of lengths is not taken in its place
        raise ValueError(
            f"{file} has no column {column!r}; it has {', '.join(names)}.{nearest(column, names)}"
        )
    if found is None:
        raise ValueError(
            f"{file} has neither a token column {column!r} nor a column of lengths; it has "
            f"{', '.join(names)}. Name one with --length or --column.{nearest(column, names)}"
        )
    return found


def _column_names(file: str, suffix: str) -> list[str]:
    if suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return list(pq.read_schema(file).names)
        except pa.ArrowInvalid as error:
            reason = str(error).rstrip(".")
            raise ValueError(f"{file}: not a whole parquet file: {reason}. Write it again.") from error
    return list(_read_table(file, suffix).column_names)


def _read_column(file: str, suffix: str, name: str) -> Any:
    import pyarrow as pa

    if suffix == ".parquet":
        import pyarrow.parquet as pq

        from loaders.sources.broken import told
        from loaders.sources.files import DataFile

        table = told(DataFile.at(file), f"column {name!r}", lambda: pq.read_table(file, columns=[name]))
    else:
        table = _read_table(file, suffix)
    kind = table.column(name).type
    if pa.types.is_null(kind):
        return np.zeros(table.num_rows, np.int64)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ValueError(f"{file}: column {name!r} must hold lengths, one number a row, it is {kind}.")
    return table.column(name).fill_null(0).to_numpy()


def _read_table(file: str, suffix: str) -> Any:
    import pyarrow as pa

    if suffix == ".csv":
        import pyarrow.csv as csv

        try:
            return csv.read_csv(file)
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"{file} must be a table with a line of names and equally many values a line: {error}"
            ) from error
    from loaders.sources.arrow import open_batches
    from loaders.sources.files import DataFile

    batches = open_batches(DataFile.at(file))
    return pa.Table.from_batches(batches) if batches else pa.table({})


def _checked(values: Any, file: str) -> NDArray[np.int64]:
    from balancer.costs.checks import check_lengths

    try:
        return check_lengths(values)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
