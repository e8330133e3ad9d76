"""A source whose rows lie in chunks, each decoded whole: row groups, record batches, blocks of lines."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import DTypeLike, NDArray

from loaders.batches.labels import IGNORED
from loaders.sources import _kernels
from loaders.sources.base import Blocks, Rows, Source
from loaders.sources.broken import BrokenFile
from loaders.sources.cache import BoundedCache
from loaders.sources.differences import MOST_FILES, table_of_differences
from loaders.sources.encode import Encoder
from loaders.sources.files import DataFile
from loaders.sources.flat import MAX_TOKEN_ID, AnyRuns, ColumnError, FlatChunk, RowErrors, Runs, as_numpy
from loaders.sources.layout import FileChunks, Layout, join_files
from loaders.sources.scan import Reject, Scan
from loaders.sources.scanning import on_threads, remembered, remembered_layout
from loaders.workers.slate import note
from packing._rows import extremes

TableRead = tuple[pa.Table, dict[int, str]]
"""A chunk's rows, and what is wrong with which of them."""


logger = logging.getLogger(__name__)

DECODED = BoundedCache[FlatChunk](1 << 30, lambda chunk: chunk.size_bytes)
"""Chunks of all sources of this process, at most 1 GiB."""
NARROW = np.dtype(np.uint16)
"""What token ids below 65,536 are kept as."""


class Piece(NamedTuple):
    """Rows of one read that lie in one chunk."""

    chunk_id: int
    chunk: FlatChunk
    where: NDArray[np.int64]
    """[N] Their places among the rows asked for."""
    local: NDArray[np.int64]
    """[N] Their numbers within the chunk."""
    tokens: Runs
    """Their tokens."""


class ChunkedSource(Source):
    """Rows of one or more files, in chunks. Layout and lengths are found when first asked for."""

    keeps_layout = True
    """Whether the layout follows from the files alone, so that it can be kept in the cache folder."""
    mapped = False
    """Whether chunks are views of mapped files: nothing to keep, and nothing to copy."""

    def __init__(
        self,
        files: Sequence[DataFile],
        *,
        encoder: Encoder,
        name: str,
        length: str | None = None,
        max_token_id: int = MAX_TOKEN_ID,
        on_bad: str = "error",
    ) -> None:
        if on_bad not in ("error", "skip"):
            raise ValueError(f"on_bad must be 'error' or 'skip', it is {on_bad!r}")
        self.files = list(files)
        self.encoder = encoder
        self.name = name
        self.length_column = length
        self.max_token_id = max_token_id
        self.on_bad = on_bad
        self.cache_folder: Path | None = None
        """Where lengths are kept when finding them took long; None: nowhere."""
        self.skip_files = False
        """Whether damaged files are left out; else they raise."""
        self.shuffle_blocks: int | None = None
        """Chunks that are shuffled together; 0: all; ``None``: as many as can be held."""
        self._layout_found: Layout | None = None
        self._scan: Scan | None = None
        self._key = self.key()

    # what a format fills in ------------------------------------------------------------------

    @abstractmethod
    def chunks_of(self, file: int) -> FileChunks:
        """Where a file's rows lie, without decoding them. Raises BrokenFile when it is damaged."""

    @abstractmethod
    def read_table(self, file: int, part: int, columns: Sequence[str] | None) -> TableRead:
        """One chunk and its bad rows; ``columns=None`` reads what the encoder wants."""

    def find_layout(self) -> Layout:
        """The chunks of all files; damaged files are left out where the caller asked for that."""
        numbers = range(len(self.files))
        return join_files(on_threads(self._chunks_or_reason, numbers, f"index of {self.name}"))

    def check(self) -> None:
        """What can be told at once of files that are not whole; formats with a footer look at it."""

    def row_origin(self, file: int, row: int) -> str:
        """Where row ``row`` of a file comes from; formats with lines or members say it more closely."""
        return f"{self.files[file].path}, row {row}"

    def column_types(self, file: int) -> Mapping[str, str] | None:
        """Type of each column of a file, for messages; ``None`` where the format does not tell."""
        return None

    def place(self, file: int) -> str:
        """What messages call a file."""
        return self.files[file].path

    def encode(self, table: pa.Table) -> FlatChunk:
        """Rows of a table as flat tokens. Raises RowErrors or ColumnError."""
        return self.encoder.encode(table)

    def without(self, table: pa.Table, bad: Mapping[int, str]) -> pa.Table:
        """The table with some rows null."""
        return without_rows(table, bad)

    # what every source offers ----------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """Where the chunks lie; found once a process."""
        if self._layout_found is None:
            folder = self.cache_folder if self.keeps_layout else None
            found = remembered_layout(self.layout_identity(), self.files, self.find_layout, folder)
            for number, reason in found.broken.items():
                logger.warning("%s: file %d is left out: %s", self.name, number, reason)
            self._layout_found = found
            self._tell_large(found)
        return self._layout_found

    def _tell_large(self, layout: Layout) -> None:
        """A chunk that the cache cannot hold is decoded again for every batch that needs it."""
        if self.mapped or not layout.size_bytes.size:
            return
        chunk = int(np.argmax(layout.size_bytes))
        size = int(layout.size_bytes[chunk])
        if size > DECODED.budget:
            logger.warning(
                "%s: chunk %d of %s needs about %.1f GiB of memory in every process that reads it; the cache "
                "of decoded chunks has %.1f. Write the file with smaller row groups or shards.",
                self.name,
                layout.part[chunk],
                self.place(int(layout.file[chunk])),
                size / 2**30,
                DECODED.budget / 2**30,
            )

    def layout_identity(self) -> str:
        """What the layout depends on beside the files."""
        return f"{type(self).__name__}:{self.skip_files}"

    def _chunks_or_reason(self, file: int) -> FileChunks | str:
        try:
            return self.chunks_of(file)
        except BrokenFile as error:
            if not self.skip_files:
                raise
            return str(error)

    def __len__(self) -> int:
        return int(self.layout.first_row[-1])

    def lengths(self) -> NDArray[np.int64]:
        """[S] Tokens of each row, by decoding every chunk once, or from the length column."""
        return self.scan().lengths

    def loss_tokens(self) -> NDArray[np.int64]:
        """[S] Labels of each row that count in the loss."""
        scan = self.scan()
        return np.maximum(scan.lengths - 1, 0) if scan.loss_tokens is None else scan.loss_tokens

    @property
    def trains_on_all(self) -> bool:
        """Where no row has a label column."""
        return self.scan().loss_tokens is None

    @property
    def knows_loss_tokens(self) -> bool:
        """Not where lengths are read from a column, since labels are not read then."""
        return self.length_column is None

    def rejects(self) -> tuple[Reject, ...]:
        """Rows left out under ``on_bad="skip"``; they have length 0. Files left out come first, one each."""
        broken = self.layout.broken.items()
        files = tuple(Reject(self.place(number), reason, -1 - number) for number, reason in broken)
        return files + self.scan().rejects

    def null_rows(self) -> int:
        """Rows that are null; they count as empty ones."""
        return self.scan().num_null

    def scan(self) -> Scan:
        """Lengths and label counts of all rows; found once a process."""
        if self._scan is None:
            make = self._scan_lengths if self.length_column else self._scan_tokens
            identity = f"{self.identity()}:{self.length_column}"
            self._scan = remembered(identity, self.files, make, self.cache_folder)
            if self._scan.rejects:
                rejects = self._scan.rejects
                logger.warning("%s: %d rows skipped, the first: %s", self.name, len(rejects), rejects[0])
        return self._scan

    @property
    def reads_whole_files(self) -> bool:
        """Whether any row costs its whole file, since the file is unpacked or fetched as a whole."""
        return self.mapped and self.is_fetched

    @property
    def is_fetched(self) -> bool:
        """Whether a file comes over a network."""
        return not all(file.is_local for file in self.files)

    def blocks(self) -> Blocks | None:
        """Its chunks, or its files where they are read as a whole; none where all are mapped."""
        if self.shuffle_blocks is None and self.mapped and not self.is_fetched:
            return None
        first_row, sizes = self.layout.first_row, self.layout.size_bytes
        if self.reads_whole_files and sizes.size:
            begins = np.flatnonzero(np.diff(self.layout.file, prepend=-1))  # first chunk of each file
            first_row = np.append(first_row[begins], first_row[-1])
            sizes = np.add.reduceat(sizes, begins)
        return Blocks(
            first_row=first_row,
            size_bytes=sizes,
            fetched=self.is_fetched,
            together=self.shuffle_blocks,
        )

    def read(self, rows: NDArray[np.int64]) -> Rows:
        """The payload of ``rows``, in the order asked for."""
        rows = np.asarray(rows, dtype=np.int64)
        least, most = extremes(rows) if rows.size else (0, -1)
        if least < 0 or most >= len(self):
            raise IndexError(f"{self.name} has rows 0..{len(self) - 1}, asked for {least}..{most}")
        lengths = np.zeros(rows.size, np.int64)
        pieces = []
        for chunk_id, where in self._by_chunk(rows):
            note(self, int(rows[where[0]]))
            chunk, local = self.chunk(chunk_id), rows[where] - self.layout.first_row[chunk_id]
            piece = Piece(chunk_id, chunk, where, local, chunk.tokens.take(local))
            lengths[where] = piece.tokens.lengths
            pieces.append(piece)
        offsets = np.zeros(rows.size + 1, np.int64)
        lengths.cumsum(out=offsets[1:])
        input_ids = np.empty(int(offsets[-1]), np.int32)
        labels = None
        if any(piece.chunk.labels is not None for piece in pieces):
            labels = np.empty(input_ids.size, np.int64)
        for piece in pieces:
            self._gather(piece, input_ids, offsets[piece.where])
            if labels is not None:
                _gather_labels(piece, input_ids, labels, offsets[piece.where])
        columns = _gather_columns(pieces, rows.size)
        return Rows(input_ids=input_ids, offsets=offsets, labels=labels, columns=columns)

    def _by_chunk(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Chunks that ``rows`` lie in, and the places among ``rows`` that lie in each."""
        first_row = self.layout.first_row
        if not rows.size:
            return
        if first_row.size == 2:
            yield 0, np.arange(rows.size)
            return
        chunk_of = np.searchsorted(first_row, rows, side="right") - 1
        order = np.argsort(chunk_of, kind="stable")
        ordered = chunk_of[order]
        begins = np.concatenate(([0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, [rows.size])).tolist()
        for begin, end in itertools.pairwise(begins):
            yield int(ordered[begin]), order[begin:end]

    def origin(self, row: int) -> str:
        """File and row within it."""
        layout = self.layout
        chunk_id = int(np.searchsorted(layout.first_row, row, side="right")) - 1
        return self.chunk_origin(chunk_id, int(row - layout.first_row[chunk_id]))

    def fingerprint(self) -> str:
        """Digest of both ends of every file, their sizes, and how rows become tokens."""
        parts = [self.identity(), *(file.digest() for file in self.files)]
        return hashlib.blake2b("|".join(parts).encode(), digest_size=16).hexdigest()

    def identity(self) -> str:
        """How rows become tokens; two sources over equal files with equal identity hold equal tokens."""
        return f"{type(self).__name__}:{self.encoder.identity()}:{self.on_bad}:{self.max_token_id}"

    def key(self) -> Hashable:
        """Names the decoded chunks in the process's cache; short, since it is hashed at every look-up."""
        parts = [
            self.identity(),
            *(f"{file.path}:{file.size_bytes}:{file.modified_ns}" for file in self.files),
        ]
        return hashlib.blake2b("|".join(parts).encode(), digest_size=16).hexdigest()

    # chunks ----------------------------------------------------------------------------------

    def chunk(self, chunk_id: int) -> FlatChunk:
        """One chunk, decoded; kept while the process's budget lasts."""
        return DECODED.get((self._key, chunk_id), lambda: narrowed(self.decode(chunk_id)))

    def decode(self, chunk_id: int) -> FlatChunk:
        """One chunk, decoded now. Raises ValueError with the file and row, unless bad rows are skipped."""
        file, part = int(self.layout.file[chunk_id]), int(self.layout.part[chunk_id])
        try:
            try:
                table, bad = self.read_table(file, part, None)
            except BrokenFile as error:
                if not self.skip_files:
                    raise
                return self._unusable(chunk_id, str(error))
            return decode_table(
                table,
                bad,
                self.encode,
                limit=self.max_token_id,
                strict=self.on_bad == "error",
                origin=partial(self.chunk_origin, chunk_id),
                without=self.without,
                mapped=self.mapped,
            )
        except ColumnError as error:
            raise ValueError(f"{self.place(file)}: {error}{self._differences(file, error)}") from None

    def _differences(self, file: int, error: ColumnError) -> str:
        """Which files have which columns, behind a message that one of them cannot be read; or nothing."""
        numbers = sorted({file, *range(min(len(self.files), MOST_FILES))})
        types: list[Mapping[str, str] | None] = []
        for number in numbers:
            try:
                types.append(self.column_types(number))
            except (ValueError, OSError):  # damaged, or out of reach: the message is about another one
                types.append(None)
        named = {name for one in types if one for name in one if repr(name) in str(error)}
        table = table_of_differences([self.files[number] for number in numbers], types, sorted(named))
        if not table:
            return ""
        return (
            f"\nThe files of this source differ:\n{table}\nWrite them again with equal columns, or open "
            "those that differ as sources of their own and put them together in a Mixture."
        )

    def _unusable(self, chunk_id: int, reason: str) -> FlatChunk:
        """A chunk that is damaged though its file's index is whole: all its rows are rejected."""
        count = int(self.layout.first_row[chunk_id + 1] - self.layout.first_row[chunk_id])
        zeros = np.zeros(count, np.int64)
        runs = Runs(values=np.zeros(0, np.int32), starts=zeros, lengths=zeros, num_null=count)
        return FlatChunk(tokens=runs, rejects=dict.fromkeys(range(count), reason))

    def checked(self, chunk: FlatChunk, chunk_id: int) -> FlatChunk:
        """A chunk that no table was made for, its ids looked at."""
        try:
            return check_ids(chunk, self.max_token_id, mapped=self.mapped, strict=self.on_bad == "error")
        except RowErrors as error:
            bad = error.reasons
        rows = list(bad)
        lengths = chunk.tokens.lengths.copy()
        lengths[rows] = 0
        tokens = dataclasses.replace(chunk.tokens.take(np.arange(lengths.size)), lengths=lengths)
        return dataclasses.replace(chunk, tokens=tokens, rejects=bad)

    def _gather(self, piece: Piece, out: NDArray[np.int32], out_starts: NDArray[np.int64]) -> None:
        tokens = piece.tokens
        limit = self.max_token_id
        bad = _kernels.gather(tokens.values, tokens.starts, tokens.lengths, out, out_starts, limit)
        if bad >= 0:
            origin = self.chunk_origin(piece.chunk_id, int(piece.local[bad]))
            raise ValueError(f"{origin}: {_range_reason(tokens, bad, self.max_token_id)}")

    def chunk_origin(self, chunk_id: int, row: int) -> str:
        """Where a row of a chunk comes from."""
        layout = self.layout
        file = int(layout.file[chunk_id])
        return self.row_origin(file, int(layout.first_row[chunk_id]) + row - layout.first_of_file(file))

    def _scan_tokens(self) -> Scan:
        lengths = np.zeros(len(self), np.int64)
        loss_tokens: NDArray[np.int64] | None = None
        num_null = 0
        rejects: list[Reject] = []
        first_file: dict[bool, int] = {}
        """First file with labels, and first without."""
        chunks = range(self.layout.file.size)
        lean = self._without_carried()
        for chunk_id, chunk in enumerate(on_threads(lean.chunk, chunks, f"lengths of {self.name}")):
            rows = slice(int(self.layout.first_row[chunk_id]), int(self.layout.first_row[chunk_id + 1]))
            lengths[rows] = chunk.tokens.lengths
            if chunk.labels is not None and loss_tokens is None:
                loss_tokens = np.maximum(lengths - 1, 0)
            if loss_tokens is not None:
                loss_tokens[rows] = chunk.num_loss_tokens()
            first_file.setdefault(chunk.labels is not None, int(self.layout.file[chunk_id]))
            num_null += chunk.tokens.num_null - len(chunk.rejects)
            bad_rows = sorted(chunk.rejects.items())
            rejects.extend(
                Reject(self.chunk_origin(chunk_id, row), reason, rows.start + row) for row, reason in bad_rows
            )
        if len(set(first_file.values())) > 1:
            logger.warning(
                "%s has a column of labels and %s has none: every token of such files is trained on. "
                "Name the column with labels=, which all files must have then, or pass labels=False.",
                *(self.place(first_file[labelled]) for labelled in (True, False)),
            )
        return Scan(lengths=lengths, loss_tokens=loss_tokens, num_null=num_null, rejects=tuple(rejects))

    def _without_carried(self) -> ChunkedSource:
        """The source without columns that lengths do not need: they may hold pictures."""
        lean = copy.copy(self)
        lean.encoder = self.encoder.without_carried()
        lean._key = lean.key()
        return lean

    def _scan_lengths(self) -> Scan:
        lengths, num_null = np.zeros(len(self), np.int64), 0
        chunks = range(self.layout.file.size)
        for chunk_id, found in enumerate(on_threads(self._length_column, chunks, f"lengths of {self.name}")):
            num_null += found.null_count
            first = int(self.layout.first_row[chunk_id])
            values = as_numpy(found.fill_null(0)).astype(np.int64)
            if values.size and values.min() < 0:
                row = int(np.argmin(values))
                where = self.chunk_origin(chunk_id, row)
                raise ValueError(f"{where}: a length must be 0 or more, it is {values[row]}")
            lengths[first : first + values.size] = values
        return Scan(lengths=lengths, loss_tokens=None, num_null=num_null, rejects=())

    def _length_column(self, chunk_id: int) -> pa.ChunkedArray:
        column = self.length_column
        assert column is not None
        file, part = int(self.layout.file[chunk_id]), int(self.layout.part[chunk_id])
        try:
            values = self.read_table(file, part, [column])[0][column]
        except ColumnError as error:
            raise ValueError(f"{self.place(file)}: {error}{self._differences(file, error)}") from None
        if not pa.types.is_integer(values.type):
            where = f"{self.place(file)}: length column {column!r}"
            raise ValueError(f"{where} must be integer, it is {values.type}")
        return values

    def __getstate__(self) -> dict[str, Any]:
        """Everything but lengths, which only the planning process needs."""
        return {**self.__dict__, "_scan": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {len(self.files)} files)"


def decode_table(
    table: pa.Table,
    bad: Mapping[int, str],
    encode: Callable[[pa.Table], FlatChunk],
    *,
    limit: int,
    strict: bool,
    origin: Callable[[int], str],
    without: Callable[[pa.Table, Mapping[int, str]], pa.Table] = lambda table, bad: without_rows(table, bad),
    mapped: bool = False,
) -> FlatChunk:
    """Rows of a table as tokens, all of them in 0..limit-1.

    Rows that cannot be used, ``bad`` and those found on the way, are told by ``rejects`` and have length 0;
    or raise ValueError under ``strict``.
    """
    while True:
        if bad and strict:
            row, reason = min(bad.items())
            raise ValueError(f"{origin(row)}: {reason}")
        try:
            chunk = check_ids(
                encode(without(table, bad) if bad else table), limit, mapped=mapped, strict=strict
            )
            return dataclasses.replace(chunk, rejects=bad)
        except RowErrors as error:
            bad = {**error.reasons, **bad}


def check_ids(chunk: FlatChunk, limit: int, *, mapped: bool, strict: bool) -> FlatChunk:
    """The chunk with tokens as int32; ids out of range are refused here, before any planning.

    A mapped chunk keeps its type, and under ``strict`` is not looked through: reading checks it anyway.
    """
    tokens = chunk.tokens
    if not (mapped and strict):
        wrong = np.zeros(len(tokens), bool)
        if _kernels.out_of_range(tokens.values, tokens.starts, tokens.lengths, limit, wrong):
            rows = np.flatnonzero(wrong)
            taken = tokens.take(rows)
            reasons = {int(row): _range_reason(taken, at, limit) for at, row in enumerate(rows)}
            raise RowErrors(reasons)
    if mapped:
        return dataclasses.replace(chunk, tokens=tokens.over())
    if tokens.is_span:  # over pieces that would stay in memory uncounted
        labels = chunk.labels
        return dataclasses.replace(
            chunk,
            tokens=compact(tokens, np.int32),
            labels=labels if labels is None or not labels.is_span else compact(labels, labels.values.dtype),
        )
    if tokens.values.dtype == np.int32:
        return chunk
    return dataclasses.replace(chunk, tokens=tokens.over(tokens.values.astype(np.int32)))


def narrowed(chunk: FlatChunk) -> FlatChunk:
    """The chunk with its ids, which are in range, in two bytes each where they fit: half the memory to keep.

    Of mapped files there is nothing to keep.
    """
    tokens = chunk.tokens
    if tokens.is_span or tokens.values.dtype.itemsize <= NARROW.itemsize:
        return chunk
    wide = np.zeros(len(tokens), bool)
    if _kernels.out_of_range(tokens.values, tokens.starts, tokens.lengths, 1 << 16, wide):
        return chunk
    return dataclasses.replace(chunk, tokens=tokens.over(tokens.values.astype(NARROW)))


def compact(runs: AnyRuns, dtype: DTypeLike) -> Runs:
    """The same rows end to end in an array of their own."""
    lengths = runs.lengths
    starts = np.cumsum(lengths) - lengths
    values = np.empty(int(lengths.sum()), dtype)
    _kernels.copy_runs(runs.values, runs.starts, lengths, values, starts)
    return Runs(values=values, starts=starts, lengths=lengths, num_null=runs.num_null)


def _range_reason(runs: Runs, row: int, limit: int) -> str:
    start, length = runs.starts[row], runs.lengths[row]
    ids = runs.values[start : start + length]
    wrong = int(ids[(ids < 0) | (ids >= limit)][0])
    advice = "Check that column and tokenizer belong together."
    return f"token ids must be 0..{limit - 1}, there is {wrong}. {advice}"


def without_rows(table: pa.Table, rows: Collection[int]) -> pa.Table:
    """The table with some rows null."""
    if not rows:
        return table
    mask = np.zeros(table.num_rows, bool)
    mask[list(rows)] = True
    columns = [pc.if_else(pa.array(mask), pa.scalar(None, column.type), column) for column in table.columns]
    return pa.table(columns, names=table.column_names)


def _gather_labels(
    piece: Piece,
    input_ids: NDArray[np.int32],
    out: NDArray[np.int64],
    out_starts: NDArray[np.int64],
) -> None:
    """Labels of a piece's rows beside their tokens, which already are in ``input_ids``."""
    chunk, lengths = piece.chunk, piece.tokens.lengths
    if chunk.labels is None:
        _kernels.copy_runs(input_ids, out_starts, lengths, out, out_starts)
    else:
        labels = chunk.labels.take(piece.local)
        _kernels.copy_runs(labels.values, labels.starts, lengths, out, out_starts)
        if chunk.labels_are_marks:
            _kernels.label_marked(input_ids, out_starts, lengths, IGNORED, out)


def _gather_columns(pieces: Sequence[Piece], size: int) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for piece in pieces:
        for name in piece.chunk.columns:
            out = columns.setdefault(name, [None] * size)
            found = piece.chunk.column_values(name, piece.local)
            for position, value in zip(piece.where.tolist(), found, strict=True):
                out[position] = value
    return columns
