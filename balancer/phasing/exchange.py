"""What moves where, when samples are encoded on other ranks than those that read them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from balancer.phasing.assembly import Ints, in_execution_order
from balancer.plan import StepPlan
from balancer.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """Rates at which encoder outputs travel; the defaults are those of an H100 node with 400 Gb/s a GPU."""

    intra_node: float = 337e9
    """Bytes/s that a rank sends or receives inside its node."""
    inter_node: float = 37e9
    """Bytes/s between nodes."""
    latency_s: float = 5e-5
    """Seconds of one exchange, however small."""

    def __post_init__(self) -> None:
        if not (self.intra_node > 0 and self.inter_node > 0 and self.latency_s >= 0):
            raise ValueError(f"Links need positive rates and a latency of at least 0, got {self}.")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Exchange:
    """Outputs that change ranks. Axis: X = transfers, by source rank, then target rank, then sample.

    Gradients go the same ways back. What is read where it was encoded does not stand here.
    """

    sample: Ints
    """[X] Row of the step's table."""
    source_rank: NDArray[np.int32]
    """[X] Rank that encodes it, or a share of it."""
    target_rank: NDArray[np.int32]
    """[X] Rank that reads it."""
    size_bytes: Ints
    """[X] Bytes of the output."""
    time_s: float
    """Predicted seconds, there and back."""

    @property
    def total_bytes(self) -> int:
        """Bytes that travel in the forward pass."""
        return int(self.size_bytes.sum())


def exchange_between(
    encoder: StepPlan,
    language: StepPlan,
    units: Ints,
    bytes_per_unit: float,
    *,
    topology: Topology,
    links: Links,
) -> Exchange:
    """Who sends what to whom.

    Every rank that shares a sample's tokens reads the whole output, as `balancer.exchange.ExchangeTable`
    moves it. Where several ranks encode one sample, each holds, and sends, an equal share. units: [S].
    """
    samples, sources, targets, sizes = [], [], [], []
    from_batch, to_batch = _batch_of(encoder, units.size), _batch_of(language, units.size)
    for s in np.flatnonzero(units > 0):
        size = round(float(units[s]) * bytes_per_unit)
        a, b = from_batch[s], to_batch[s]
        senders, readers = int(encoder.micro_batches.cp_degree[a]), int(language.micro_batches.cp_degree[b])
        first_sender = int(encoder.micro_batches.first_rank[a])
        first_reader = int(language.micro_batches.first_rank[b])
        for i in range(senders):
            share = (i + 1) * size // senders - i * size // senders
            for j in range(readers):
                if share and first_sender + i != first_reader + j:
                    samples.append(int(s))
                    sources.append(first_sender + i)
                    targets.append(first_reader + j)
                    sizes.append(share)
    columns = [np.array(column, dtype=np.int64) for column in (samples, sources, targets, sizes)]
    by_rank = np.lexsort((columns[0], columns[2], columns[1]))
    sample, source, target, size_bytes = (column[by_rank] for column in columns)
    return Exchange(
        sample=sample,
        source_rank=source.astype(np.int32),
        target_rank=target.astype(np.int32),
        size_bytes=size_bytes,
        time_s=_exchange_s(source, target, size_bytes, topology, links),
    )


def _exchange_s(source: Ints, target: Ints, size_bytes: Ints, topology: Topology, links: Links) -> float:
    """Seconds there and back: the busiest rank's bytes each way, inside and between nodes."""
    if size_bytes.size == 0:
        return 0.0
    node = topology.ranks_per_node or topology.ranks
    across = source // node != target // node
    busy_s = np.zeros(topology.ranks)
    for mine, rate in ((~across, links.intra_node), (across, links.inter_node)):
        sent = np.bincount(source[mine], size_bytes[mine], topology.ranks)
        received = np.bincount(target[mine], size_bytes[mine], topology.ranks)
        busy_s += np.maximum(sent, received) / rate
    return 2.0 * (float(busy_s.max()) + links.latency_s)


def near_the_readers(encoder: StepPlan, language: StepPlan, units: Ints, *, topology: Topology) -> StepPlan:
    """The encoder's plan with its ranks renamed so that more outputs are read where they were made.

    Ranks of equal speed are interchangeable. Greedy: the pair of (list, rank) with most units in common
    first, ties by number. Plans with CP groups or unequal ranks stay as they are.
    """
    batches = encoder.micro_batches
    if topology.speed is not None or len(batches) == 0 or batches.cp_degree.max() > 1:
        return encoder
    ranks = topology.ranks
    present = np.flatnonzero(units > 0)
    maker = batches.first_rank[_batch_of(encoder, units.size)[present]].astype(np.int64)
    reader = language.micro_batches.first_rank[_batch_of(language, units.size)[present]].astype(np.int64)
    pair, which = np.unique(maker * ranks + reader, return_inverse=True)
    common = np.bincount(which.reshape(-1), units[present])
    name_of = np.full(ranks, -1, np.int64)
    taken = np.zeros(ranks, dtype=bool)
    for k in np.lexsort((pair, -common)):
        a, b = divmod(int(pair[k]), ranks)
        if name_of[a] < 0 and not taken[b]:
            name_of[a], taken[b] = b, True
    name_of[name_of < 0] = np.flatnonzero(~taken)
    first_rank = name_of[batches.first_rank]
    rank_time_s = np.empty_like(encoder.rank_time_s)
    rank_time_s[name_of] = encoder.rank_time_s
    return replace(
        encoder,
        micro_batches=in_execution_order(replace(batches, first_rank=first_rank.astype(np.int32))),
        rank_time_s=rank_time_s,
    )


def _batch_of(plan: StepPlan, num_samples: int) -> Ints:
    """[S] micro-batch of each sample, -1 where the plan does not hold it."""
    batches = plan.micro_batches
    batch_of: Ints = np.full(num_samples, -1, np.int64)
    batch_of[batches.order] = np.repeat(np.arange(len(batches)), np.diff(batches.offsets))
    return batch_of
