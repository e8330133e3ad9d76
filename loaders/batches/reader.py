"""Reads the payload of a share: the map-style dataset that torch's workers run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from loaders.batches.batch import Place
from loaders.batches.collate import Packed, TokenRows
from loaders.batches.joins import Join, join_columns, joins_of
from loaders.batches.labels import IGNORED
from loaders.batches.pieces import read_pieces, take_runs
from loaders.batches.shares import Share
from loaders.faults import Fault, named
from loaders.order.permutation import grouped
from loaders.sources._kernels import count_kept
from loaders.sources.base import Rows, Source, samples_of
from packing._rows import int_sum

CollateFn = Callable[[list[Any]], Any]
Part = tuple[NDArray[np.int64], Rows]
"""Places within a share, and the payload of the samples there: all those of one source."""
NAMED = 4
"""Samples that a message about a whole batch names."""


class Reader(Dataset[Packed]):
    """Share in, `Packed` out. Picklable as far as its sources and ``collate_fn`` are.

    Args:
        sources: by the numbers that shares use.
        collate_fn: makes model inputs of a list of samples (dicts with ``input_ids``, ``labels`` where the
            source has them, and the further columns); ``None``: the flat layout.
        capacity: tokens of the longest sample; longer rows are cut.
        pad_to: allowed token counts of a batch, rising.
        skip_faults: let a sample that cannot be read keep its place without training anything.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        capacity: int,
        collate_fn: CollateFn | None = None,
        pad_to: Sequence[int] = (),
        skip_faults: bool = False,
    ) -> None:
        self.skip_faults = skip_faults
        self.sources = list(sources)
        self.capacity = capacity
        self.collate_fn = collate_fn
        self.pad_to = tuple(pad_to)
        self.joins = joins_of([source.joins() for source in self.sources])
        self._fillers: dict[str, Rows] = {}

    def __getitem__(self, share: Share) -> Packed:
        faults: list[Fault] = []
        return self.packed(share, self.read(share, faults), faults)

    def packed(self, share: Share, rows: Rows, faults: Sequence[Fault]) -> Packed:
        """The micro-batch that a share's payload makes."""
        counts = _counts(rows)
        place = place_of(share)
        inputs = None
        if self.collate_fn is not None and len(share):
            inputs = self._collate(share, rows)
            if rows.rejects:
                lost = int(share.num_loss_tokens[list(rows.rejects)].sum())
                place = place.with_(num_loss_tokens=place.num_loss_tokens - lost)
            rows = Rows(input_ids=rows.input_ids[:0], offsets=rows.offsets[:1], columns=rows.columns)
        elif rows.labels is not None:
            place = self._with_labels(place, share, rows)
        if share.fillers and self.collate_fn is None:
            rows, place = self._filled(rows, place, share)
        if inputs is None:
            lengths = np.diff(rows.offsets) if rows.columns else rows.offsets[:0]
            features, token_rows, columns = join_columns(rows.columns, self.joins, lengths)
        else:  # the user's own function has had the arrays
            features, token_rows = {}, {}
            columns = {name: values for name, values in rows.columns.items() if name not in self.joins}
        return Packed(
            place=place,
            tokens=rows.input_ids,
            labels=rows.labels,
            columns=columns,
            inputs=inputs,
            pad_to=(share.pad_to,) if share.pad_to else self.pad_to,
            features={name: torch.from_numpy(array) for name, array in features.items()},
            token_rows={
                name: TokenRows(values=array, fill=self.joins[name].fill)
                for name, array in token_rows.items()
            },
            counts=counts,
            faults=tuple(faults),
        )

    def _filled(self, rows: Rows, place: Place, share: Share) -> tuple[Rows, Place]:
        """Behind the samples the smallest media of kinds that other ranks have; they are no samples."""
        if not self._fillers:
            self._fillers = {kind: part for source in self.sources for kind, part in source.fillers().items()}
        added = [self._fillers[kind] for kind in share.fillers]
        lengths = [filler.input_ids.size for filler in added]
        seq_lengths = np.concatenate([share.num_tokens, lengths]).astype(np.int32)
        return append_fillers(rows, added, self.joins), place.with_(seq_lengths=seq_lengths)

    def read(self, share: Share, faults: list[Fault]) -> Rows:
        """Payload of a share's samples and pieces, in its order. Skipped samples are added to ``faults``."""
        parts: list[Part] = []
        for number, mine in by_source(share, len(self.sources)):
            rows, found = read_pieces(
                self.sources[number],
                share.row[mine],
                share.start[mine],
                share.num_tokens[mine],
                capacity=self.capacity,
                skip_faults=self.skip_faults,
            )
            parts.append((mine, rows))
            faults += found
        return in_order(parts, share)

    def _with_labels(self, place: Place, share: Share, rows: Rows) -> Place:
        """The place with its labels counted. The step's loss weight is metadata, so it must be what they say.

        A sample that could not be read has no labels left; the step's weight stays as planned, as if its
        tokens had no loss, since the other ranks cannot know.
        """
        assert rows.labels is not None
        found = np.empty(len(share), np.int64)
        count_kept(rows.labels, rows.offsets[:-1], np.diff(rows.offsets), IGNORED, found)
        expected = share.num_loss_tokens.copy()
        expected[list(rows.rejects)] = 0
        wrong = np.flatnonzero(found != expected)
        if wrong.size and not all(self.sources[s].knows_loss_tokens for s in share.source[wrong]):
            return place.with_(num_loss_tokens=int(found.sum()))  # and the loader sums over the step
        if wrong.size:
            bad = int(wrong[0])
            origin = self.sources[share.source[bad]].origin(int(share.row[bad]))
            raise RuntimeError(
                f"{origin}: {found[bad]} labels count in the loss where the metadata said "
                f"{share.num_loss_tokens[bad]}. step_loss_tokens would be wrong on all ranks. Let the "
                "source's loss_tokens() count labels that are neither -100 nor the first of their sample."
            )
        return place.with_(num_loss_tokens=int(expected.sum())) if rows.rejects else place

    def _collate(self, share: Share, rows: Rows) -> Mapping[str, Any]:
        assert self.collate_fn is not None
        try:
            inputs = self.collate_fn(samples_of(rows))
        except Exception as error:
            origins = [
                self.sources[s].origin(int(row)) for s, row in zip(share.source, share.row, strict=True)
            ]
            more = f" and {len(origins) - NAMED} more" if len(origins) > NAMED else ""
            raise named(
                f"step {share.step}, stage collate_fn: {type(error).__name__}: {error}. The samples were "
                f"{', '.join(origins[:NAMED])}{more}.",
                error,
            ) from error
        if not isinstance(inputs, Mapping):
            raise TypeError(
                f"with max_tokens, collate_fn must return a mapping of model inputs, it returned "
                f"{type(inputs).__name__}: the batch carries its place in the step beside them."
            )
        return inputs


def place_of(share: Share) -> Place:
    """A batch's attributes, known before it is read."""
    idle = len(share) == 0
    return Place(
        step=share.step,
        slot=share.slot,
        last_in_step=share.last_in_step,
        cp_degree=share.cp_degree,
        cp_rank=share.cp_rank,
        first_rank=share.first_rank,
        sample_ids=_pairs(share.source, share.row),
        starts=share.start,
        seq_lengths=np.ones(1, np.int32) if idle else share.num_tokens.astype(np.int32),
        num_loss_tokens=int_sum(share.num_loss_tokens),
        step_loss_tokens=share.step_loss_tokens,
        num_ranks=share.num_ranks,
        step_samples=share.step_samples,
        phase=share.phase,
        last_in_phase=share.last_in_phase,
    )


def by_source(share: Share, num_sources: int) -> list[tuple[int, NDArray[np.int64]]]:
    """Numbers of a share's sources, each with the places of its samples; none of an empty share."""
    if len(share) == 0:
        return []
    if num_sources == 1:
        return [(int(share.source[0]), np.arange(len(share)))]
    return list(grouped(share.source, num_sources))


def in_order(parts: Sequence[Part], share: Share) -> Rows:
    """The payload of a share's sources in the share's order."""
    if not parts:
        return Rows(input_ids=np.zeros(0, np.int64), offsets=np.zeros(1, np.int64))
    return parts[0][1] if len(parts) == 1 else _interleave(parts, share.num_tokens)


def append_fillers(rows: Rows, fillers: Sequence[Rows], joins: Mapping[str, Join]) -> Rows:
    """Rows with sequences behind them that are no samples: plain columns keep N values, joined ones get
    more.
    """
    labels = rows.labels
    if labels is None:
        labels = np.array(rows.input_ids, np.int64)
        labels[rows.offsets[:-1][np.diff(rows.offsets) > 0]] = IGNORED
    size = rows.offsets.size - 1
    names = {name for part in (rows, *fillers) for name in part.columns if name in joins}
    columns = {name: values for name, values in rows.columns.items() if name not in names}
    for name in sorted(names):
        values = list(rows.columns.get(name, [None] * size))
        columns[name] = values + [filler.columns.get(name, [None])[0] for filler in fillers]
    ends = rows.offsets[-1] + np.cumsum([filler.input_ids.size for filler in fillers])
    return Rows(
        input_ids=np.concatenate([rows.input_ids, *(filler.input_ids for filler in fillers)]),
        offsets=np.concatenate([rows.offsets, ends]),
        labels=np.concatenate([labels, *(np.asarray(filler.labels) for filler in fillers)]),
        columns=columns,
        rejects=rows.rejects,
        counts=rows.counts,
    )


def _pairs(source: NDArray[np.int32], row: NDArray[np.int64]) -> NDArray[np.int64]:
    pairs = np.empty((row.size, 2), np.int64)
    pairs[:, 0], pairs[:, 1] = source, row
    return pairs


def _counts(rows: Rows) -> dict[str, int]:
    return dict(rows.counts) | ({"rejected": len(rows.rejects)} if rows.rejects else {})


def _interleave(parts: Sequence[Part], num_tokens: NDArray[np.int64]) -> Rows:
    """Rows of several sources in the share's order. Labels are filled in for sources that have none."""
    offsets = np.concatenate([[0], np.cumsum(num_tokens)])
    order = np.argsort(np.concatenate([mine for mine, _ in parts]), kind="stable")
    tokens = np.concatenate([rows.input_ids for _, rows in parts])
    lengths = np.concatenate([np.diff(rows.offsets) for _, rows in parts])
    starts = (np.cumsum(lengths) - lengths)[order]
    labels = None
    if any(rows.labels is not None for _, rows in parts):
        labels = np.concatenate([rows.input_ids if rows.labels is None else rows.labels for _, rows in parts])
    names = {name for _, rows in parts for name in rows.columns}
    return Rows(
        input_ids=take_runs(tokens, starts, offsets),
        offsets=offsets,
        labels=None if labels is None else take_runs(labels, starts, offsets),
        columns={name: _column(name, parts, len(order)) for name in sorted(names)},
        rejects={int(mine[at]): why for mine, rows in parts for at, why in rows.rejects.items()},
        counts=sum((Counter(rows.counts) for _, rows in parts), Counter()),
    )


def _column(name: str, parts: Sequence[Part], size: int) -> list[Any]:
    """One column over all sources; ``None`` for samples whose source lacks it."""
    values: list[Any] = [None] * size
    for mine, rows in parts:
        if name in rows.columns:
            for at, value in zip(mine.tolist(), rows.columns[name], strict=True):
                values[at] = value
    return values
