"""Packs as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from loaders.packing_job import _kernels
from loaders.sources.flat import as_arrow, as_numpy
from packing import Packs

GROUP_TOKENS = 1 << 20
"""Tokens of one row group: small enough to read one pack without much else."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WindowRows:
    """Rows of a window in memory. Axes: S = rows, T = tokens."""

    tokens: NDArray[np.int32]
    """[T] Token ids, row after row."""
    labels: NDArray[np.int32]
    """[T] Labels beside them, or empty where every token is one."""
    offsets: NDArray[np.int64]
    """[S + 1] First token of each row."""
    source: NDArray[np.int32]
    """[S] Input of each row."""
    row: NDArray[np.int64]
    """[S] Row within the input."""
    carried: Mapping[str, pa.ChunkedArray]
    """Further columns: lists as long as the tokens, or one value a row."""


def groups(packs: Packs, align: int) -> Iterator[tuple[int, int]]:
    """Ranges of packs of about ``GROUP_TOKENS`` tokens."""
    begin, total = 0, 0
    for pack, tokens in enumerate(packs.num_tokens.tolist()):
        if total and total + tokens > GROUP_TOKENS:
            yield begin, pack
            begin, total = pack, 0
        total += tokens
    if begin < len(packs):
        yield begin, len(packs)


def table(
    window: WindowRows,
    packs: Packs,
    first: int,
    last: int,
    *,
    columns: Sequence[str],
    align: int = 1,
    pad_id: int = 0,
    position_start: int = 0,
) -> pa.Table:
    """Packs ``first .. last - 1`` as a table, one row a pack."""
    items = slice(int(packs.offsets[first]), int(packs.offsets[last]))
    sample, lengths = packs.order[items], packs.lengths[items]
    starts = packs.starts[items]
    padded = -(-lengths // align) * align
    item_offsets = packs.offsets[first : last + 1] - packs.offsets[first]
    bounds = np.concatenate(([0], np.cumsum(padded)))
    token_offsets = bounds[item_offsets]
    ids, positions, labels = (np.empty(int(bounds[-1]), np.int32) for _ in range(3))
    _kernels.lay_out(
        window.tokens,
        window.labels,
        window.offsets[sample] + starts,
        lengths,
        padded,
        pad_id,
        position_start,
        ids,
        positions,
        labels,
    )

    def by_token(values: NDArray[Any] | pa.Array) -> pa.Array:
        values = values if isinstance(values, pa.Array) else as_arrow(values)
        return pa.ListArray.from_arrays(as_arrow(token_offsets.astype(np.int32)), values)

    def by_sample(values: NDArray[Any] | pa.Array) -> pa.Array:
        values = values if isinstance(values, pa.Array) else as_arrow(values)
        return pa.ListArray.from_arrays(as_arrow(item_offsets.astype(np.int32)), values)

    def bounds_of(values: NDArray[np.int64]) -> pa.Array:
        return _cumulative(values, item_offsets)

    make = {
        "input_ids": lambda: by_token(ids),
        "position_ids": lambda: by_token(positions),
        "labels": lambda: by_token(labels),
        "seq_lengths": lambda: by_sample(lengths.astype(np.int32)),
        "source_ids": lambda: by_sample(window.source[sample]),
        "row_ids": lambda: by_sample(window.row[sample]),
        "row_starts": lambda: by_sample(starts.astype(np.int32)),
        "padded_lengths": lambda: by_sample(padded.astype(np.int32)),
        "cu_seqlens": lambda: bounds_of(lengths),
        "cu_seqlens_padded": lambda: bounds_of(padded),
        "sample_numbers": lambda: by_token(_sample_numbers(item_offsets, padded)),
        "loss_mask": lambda: by_token((labels != -100).astype(np.int8)),
    }
    content = {name: make[name]() for name in columns}
    for name, column in window.carried.items():
        content[name] = _carried(column, window, sample, starts, lengths, padded, by_token, by_sample)
    return pa.table(content)


def _cumulative(lengths: NDArray[np.int64], item_offsets: NDArray[np.int64]) -> pa.Array:
    """Borders within each pack: 0, then the end of each sample."""
    total = np.concatenate(([0], np.cumsum(lengths)))
    num_packs = item_offsets.size - 1
    out_offsets = item_offsets + np.arange(num_packs + 1)
    pack_of = np.repeat(np.arange(num_packs), np.diff(out_offsets))
    within = np.arange(int(out_offsets[-1])) - out_offsets[pack_of]
    values = total[item_offsets[pack_of] + within] - total[item_offsets[pack_of]]
    return pa.ListArray.from_arrays(as_arrow(out_offsets.astype(np.int32)), as_arrow(values.astype(np.int32)))


def _sample_numbers(item_offsets: NDArray[np.int64], padded: NDArray[np.int64]) -> NDArray[np.int32]:
    """[T] Number of each token's sample within its pack, from 0; padding belongs to the sample before it."""
    within = np.arange(padded.size) - np.repeat(item_offsets[:-1], np.diff(item_offsets))
    return np.repeat(within, padded).astype(np.int32)


def _carried(
    column: pa.ChunkedArray,
    window: WindowRows,
    sample: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    padded: NDArray[np.int64],
    by_token: Any,
    by_sample: Any,
) -> pa.Array:
    """A further column: laid out like the tokens if it holds one value a token, else one value a sample."""
    rows = column.combine_chunks()
    kind = rows.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return by_sample(rows.take(pa.array(sample)))
    flat, row_offsets = rows.flatten(), np.concatenate(([0], np.cumsum(_list_lengths(rows))))
    if not np.array_equal(row_offsets, window.offsets):
        return by_sample(rows.take(pa.array(sample)))
    begin = window.offsets[sample] + starts
    bounds = np.concatenate(([0], np.cumsum(padded)))
    index = np.full(int(bounds[-1]), -1, np.int64)
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    index[np.repeat(bounds[:-1], lengths) + within] = np.repeat(begin, lengths) + within
    return by_token(flat.take(pa.array(index, mask=index < 0)))


def _list_lengths(rows: pa.Array) -> NDArray[np.int64]:
    return as_numpy(pc.list_value_length(rows).fill_null(0)).astype(np.int64)
