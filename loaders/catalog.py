"""Which rows of a source are given out, and in what pieces, decided from their lengths alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.batches.labels import IGNORED
from loaders.faults import raise_named
from loaders.order.permutation import grouped
from loaders.sources.base import Rows, Source
from loaders.unlabelled import left_without_labels
from packing.table import SampleTable

logger = logging.getLogger(__name__)

COUNTED = ("kept", "dropped", "truncated", "split", "unlabelled", "empty")
"""What may become of a sample that can be read; truncated and split ones are among the kept."""

OVERSIZE = ("error", "drop", "truncate", "split")
"""What may happen to a sample that no micro-batch can hold."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Catalog:
    """One source's rows under a capacity. Axis: S = rows of the source, U = usable ones.

    Rows are empty, dropped or usable; a usable row that is too long is truncated or split.
    """

    source: Source
    lengths: NDArray[np.int64]
    """[S] Tokens of each row."""
    capacity: int
    """Tokens of the longest sample that a micro-batch can hold."""
    oversize: str
    usable: NDArray[np.int64] | None
    """[U] Rows that are given out, in row order; ``None``: all of them."""
    counts: dict[str, int]
    """Rows kept, dropped, truncated, split, unlabelled (left out, since truncation leaves them no label) and
    empty; truncated and split ones are among the kept."""
    cut_tokens: int
    """Tokens that are never given out: of dropped rows, and of the ends of truncated ones."""
    mean_tokens: float
    """Tokens that a usable row brings on average, after truncation."""
    given_loss_tokens: NDArray[np.int64] | None
    """[S] Labels of each row that count; ``None``: all but the first token, so no array is kept."""
    phases: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """Work of each row for other parts of the model, [S] units by name."""
    media: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    """Which rows have media, [S] by kind."""

    def __len__(self) -> int:
        return int(self.lengths.size if self.usable is None else self.usable.size)

    def rows(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of the source at ``places`` among the usable ones."""
        return places if self.usable is None else self.usable[places]

    def loss_tokens(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """[N] Labels of whole rows that count in the loss."""
        if self.given_loss_tokens is None:
            return np.maximum(self.lengths[rows] - 1, 0)
        return self.given_loss_tokens[rows]


def open_catalog(source: Source, *, capacity: int, oversize: str) -> Catalog:
    """Sort a source's rows by what becomes of them.

    Raises:
        ValueError: a row is too long and ``oversize`` is "error"; names the first such row and counts them.

    Cost: two passes over the lengths; 8 bytes a usable row where some rows are not usable.
    """
    lengths = np.asarray(source.lengths(), dtype=np.int64)
    too_long = int(np.count_nonzero(lengths > capacity))
    empty = int(np.count_nonzero(lengths == 0))
    if too_long and oversize == "error":
        row = int(np.argmax(lengths > capacity))
        raise ValueError(
            f"{too_long} of {lengths.size} samples of {source.name} are too long: a sample may have at most "
            f"{capacity} tokens (max_tokens times the largest CP degree), {source.origin(row)} has "
            f"{lengths[row]}. Raise max_tokens, allow a larger degree in cp_degrees, or choose "
            'oversize="drop", "truncate" or "split".'
        )
    if too_long and oversize in ("truncate", "split") and not source.divisible:
        row = int(np.argmax(lengths > capacity))
        raise ValueError(
            f"{source.origin(row)} has {lengths[row]} tokens, of {capacity} that fit, and cannot be cut "
            f'(oversize="{oversize}"): the tokens of a medium would no longer match its features. Choose '
            'oversize="drop", or leave media out with MediaRules(max_tokens=..., oversize="drop_media").'
        )
    dropped = too_long if oversize == "drop" else 0
    unlabelled = np.zeros(0, np.int64)
    if too_long and oversize == "truncate":
        unlabelled = left_without_labels(source, lengths, capacity)
    usable = None
    if empty or dropped or unlabelled.size:
        keep = lengths > 0
        if dropped:
            keep &= lengths <= capacity
        keep[unlabelled] = False
        usable = np.flatnonzero(keep)
    cut = 0
    truncated = too_long - unlabelled.size if oversize == "truncate" else 0
    if too_long and oversize in ("drop", "truncate"):
        long = lengths[lengths > capacity]
        cut = int(long.sum()) - capacity * truncated
    counts = {
        "kept": int(lengths.size) - empty - dropped - unlabelled.size,
        "dropped": dropped,
        "truncated": truncated,
        "split": too_long if oversize == "split" else 0,
        "unlabelled": int(unlabelled.size),
        "empty": empty,
    }
    _tell(source, counts, cut)
    return Catalog(
        source=source,
        lengths=lengths,
        capacity=capacity,
        oversize=oversize,
        usable=usable,
        counts=counts,
        cut_tokens=cut,
        mean_tokens=(int(lengths.sum()) - cut) / max(counts["kept"], 1),
        given_loss_tokens=None if source.trains_on_all else np.asarray(source.loss_tokens(), dtype=np.int64),
        phases=source.phases(),
        media=source.media(),
    )


def _tell(source: Source, counts: dict[str, int], cut_tokens: int) -> None:
    notable = {name: count for name, count in counts.items() if count and name != "kept"}
    if notable:
        told = ", ".join(f"{count} {name}" for name, count in notable.items())
        logger.warning(
            "%s: of %d samples %s; %d tokens are left out", source.name, _rows(counts), told, cut_tokens
        )
    if counts["unlabelled"]:
        logger.warning(
            "%s: %d samples have all their labels behind the cut and are left out. Raise max_tokens, or "
            'choose oversize="split" to train on their ends.',
            source.name,
            counts["unlabelled"],
        )


def _rows(counts: dict[str, int]) -> int:
    return sum(counts[name] for name in ("kept", "dropped", "unlabelled", "empty"))


def sample_table(
    catalogs: Sequence[Catalog], source: NDArray[np.int32], places: NDArray[np.int64]
) -> SampleTable:
    """Metadata of the samples at ``places`` [N] of their sources [N], in that order, piece after piece."""
    columns = (
        _columns(catalogs[0], places) if len(catalogs) == 1 else _mixed_columns(catalogs, source, places)
    )
    rows, num_tokens, loss, phases = columns
    capacity = catalogs[0].capacity if catalogs else 0
    table = SampleTable(
        num_tokens=num_tokens,
        source=source,
        row=rows,
        start=np.zeros(places.size, np.int64),
        num_loss_tokens=loss,
        phases=phases,
    )
    if num_tokens.max(initial=0) <= capacity:
        return table
    return _cut(table, catalogs, capacity, split=catalogs[0].oversize == "split")


Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], dict[str, NDArray[np.int64]]]


def _columns(catalog: Catalog, places: NDArray[np.int64]) -> Columns:
    """Rows, tokens, labels that count, and units by phase, [N] each, of one source's samples."""
    rows = catalog.rows(places)
    num_tokens, phases = catalog.lengths[rows], {name: units[rows] for name, units in catalog.phases.items()}
    return rows, num_tokens, catalog.loss_tokens(rows), dict(sorted(phases.items()))


def _mixed_columns(
    catalogs: Sequence[Catalog], source: NDArray[np.int32], places: NDArray[np.int64]
) -> Columns:
    """The same of several sources."""
    rows = np.empty(places.size, np.int64)
    num_tokens = np.empty(places.size, np.int64)
    loss = np.empty(places.size, np.int64)
    names = sorted({name for catalog in catalogs for name in catalog.phases})
    phases = {name: np.zeros(places.size, np.int64) for name in names}
    for number, mine in grouped(source, len(catalogs)):
        rows[mine], num_tokens[mine], loss[mine], units = _columns(catalogs[number], places[mine])
        for name in units:
            phases[name][mine] = units[name]
    return rows, num_tokens, loss, phases


def media_of(catalogs: Sequence[Catalog], table: SampleTable) -> dict[str, NDArray[np.bool_]]:
    """Whether each sample of ``table`` has media, by kind; empty where no source has any."""
    kinds = sorted({kind for catalog in catalogs for kind in catalog.media})
    found = {kind: np.zeros(len(table), np.bool_) for kind in kinds}
    for number, catalog in enumerate(catalogs if kinds else ()):
        mine = table.source == number
        for kind, rows in catalog.media.items():
            found[kind][mine] = rows[table.row[mine]]
    return found


def _cut(table: SampleTable, catalogs: Sequence[Catalog], capacity: int, *, split: bool) -> SampleTable:
    """Replace rows that are too long by their first piece, or by all pieces."""
    pieces = -(-table.num_tokens // capacity) if split else np.ones(len(table), np.int64)
    index = np.repeat(np.arange(len(table)), pieces)
    within = np.arange(index.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start = within * capacity
    num_tokens = np.minimum(table.num_tokens[index] - start, capacity)
    long = table.num_tokens > capacity
    plain = table.num_loss_tokens == table.num_tokens - 1
    loss = np.where((long & plain)[index], num_tokens - 1, table.num_loss_tokens[index])
    for piece in np.flatnonzero(
        (long & ~plain)[index]
    ):  # a piece's mask is not metadata: read those few rows
        sample = index[piece]
        labels = _labels(catalogs[table.source[sample]].source, int(table.row[sample]))
        loss[piece] = np.count_nonzero(labels[start[piece] + 1 : start[piece] + num_tokens[piece]] != IGNORED)
    return SampleTable(
        num_tokens=num_tokens,
        source=table.source[index],
        row=table.row[index],
        start=start,
        num_loss_tokens=loss,
        phases={name: units[index] for name, units in table.phases.items()},
    )


def _labels(source: Source, row: int) -> NDArray[np.integer[Any]]:
    try:
        rows: Rows = source.read(np.array([row], np.int64))
    except Exception as error:
        raise_named(source, row, "plan", error)
    return rows.input_ids if rows.labels is None else rows.labels
