"""Samples of streams on their way to other ranks: who wants which, and what they look like in between."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer import StepPlan
from loaders.batches.skipping import joined
from loaders.sources.base import Rows
from loaders.streams.intake import Held
from packing.table import SampleTable


def wanted_of(plan: StepPlan, table: SampleTable, rank: int) -> dict[int, list[int]]:
    """By rank, the samples of one rank's stream that its micro-batches hold, whole or in part.

    Args:
        plan: of the step.
        table: the step's samples; their source is the rank that read them.
        rank: the one whose samples are asked for.

    Returns numbers in the stream, rising, for ranks that want any; that rank itself among them.

    Cost: O(S) and the rank's own samples times their degrees.
    """
    batches = plan.micro_batches
    own = np.flatnonzero(table.source[batches.order] == rank)  # places in the plan's order
    m = np.searchsorted(batches.offsets, own, side="right") - 1
    degree = batches.cp_degree[m].astype(np.int64)
    within = np.arange(int(degree.sum())) - np.repeat(np.cumsum(degree) - degree, degree)
    target = np.repeat(batches.first_rank[m], degree) + within
    row = np.repeat(table.row[batches.order[own]], degree)
    pairs = np.unique(np.stack([target, row], axis=1), axis=0)  # pieces of a sample may go to one rank
    return {int(one): pairs[pairs[:, 0] == one, 1].tolist() for one in np.unique(pairs[:, 0]).tolist()}


def packed(source: Held, numbers: Sequence[int]) -> bytes:
    """Samples for another rank, laid end to end; nothing where there are none."""
    if not numbers:
        return b""
    rows = joined([source.held[number] for number in numbers])
    labels = None if rows.labels is None else _narrow(rows.labels)
    return pickle.dumps((numbers, rows.offsets, _narrow(rows.input_ids), labels, dict(rows.columns)), 5)


def unpacked(data: bytes) -> dict[int, Rows]:
    """What `packed` made, sample by sample."""
    if not data:
        return {}
    numbers, offsets, ids, labels, columns = pickle.loads(data)
    # one width for all samples: the kernels that lay out a batch are compiled for each
    ids, labels = ids.astype(np.int64), None if labels is None else labels.astype(np.int64)
    held = {}
    for at, number in enumerate(numbers):
        span = slice(int(offsets[at]), int(offsets[at + 1]))
        held[number] = Rows(
            input_ids=ids[span],
            offsets=np.array([0, span.stop - span.start], np.int64),
            labels=None if labels is None else labels[span],
            columns={name: [values[at]] for name, values in columns.items()},
        )
    return held


def _narrow(ids: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """In 32 bits where they fit: half the bytes."""
    bounds = np.iinfo(np.int32)
    fits = bounds.min <= ids.min(initial=0) and ids.max(initial=0) <= bounds.max
    return ids.astype(np.int32) if fits else ids
