"""Which rows move between ranks when two phases of a model are divided differently."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.plan import StepPlan


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ExchangeTable:
    """Moves of one exchange, the same on every rank. Axis: E = moves.

    A move takes ``count`` rows from ``start`` on ``source`` to ``target``, where they arrive in the order of
    the moves. One row may go to several ranks; a rank may send or receive nothing.
    """

    source: NDArray[np.int64]
    """[E] Rank that has the rows."""
    start: NDArray[np.int64]
    """[E] First row there."""
    count: NDArray[np.int64]
    """[E] Rows."""
    target: NDArray[np.int64]
    """[E] Rank that wants them."""

    @classmethod
    def between(cls, source: ArrayLike, target: ArrayLike, count: ArrayLike) -> ExchangeTable:
        """Items with one source and one target each; a rank holds its items' rows in the items' order.

        Args:
            source: [E] rank on which each item was encoded.
            target: [E] rank that needs it.
            count: [E] its rows.
        """
        sources, targets, counts = (np.asarray(column, dtype=np.int64) for column in (source, target, count))
        start = np.zeros_like(counts)
        for rank in np.unique(sources):
            here = sources == rank
            start[here] = np.cumsum(counts[here]) - counts[here]
        return cls(source=sources, start=start, count=counts, target=targets)

    @classmethod
    def from_plans(cls, encoder: StepPlan, language: StepPlan, rows: ArrayLike) -> ExchangeTable:
        """Outputs of a phase with its own plan, to the ranks that read their samples.

        Rows leave a rank in the order in which its encoder plan makes them and arrive in the order in which
        its language plan reads them. Every rank of a CP group receives its samples' rows whole.

        Args:
            encoder: degree-1 plan of the phase.
            language: plan of the same step's samples.
            rows: [S] output rows of each sample; samples with 0 may be missing from ``encoder``.
        """
        counts = np.asarray(rows, dtype=np.int64)
        if np.any(encoder.micro_batches.cp_degree > 1):
            raise ValueError(
                "an encoder plan with CP groups leaves no whole rows to move: plan it at degree 1."
            )
        made_on = np.full(counts.size, -1, np.int64)
        start = np.zeros(counts.size, np.int64)
        for rank in range(encoder.ranks):
            made = _samples_of(encoder, rank)
            made_on[made] = rank
            start[made] = np.cumsum(counts[made]) - counts[made]
        read = [_samples_of(language, rank) for rank in range(language.ranks)]
        sample = np.concatenate(read)
        target = np.repeat(np.arange(language.ranks), [len(one) for one in read])
        wanted = counts[sample] > 0
        sample, target = sample[wanted], target[wanted]
        if np.any(made_on[sample] < 0):
            row = int(sample[made_on[sample] < 0][0])
            raise ValueError(
                f"sample {row} has {counts[row]} output rows but no place in the encoder's plan."
            )
        return cls(source=made_on[sample], start=start[sample], count=counts[sample], target=target)

    def __post_init__(self) -> None:
        sizes = {column.size for column in (self.source, self.start, self.count, self.target)}
        if len(sizes) > 1 or (self.count.size and self.count.min() < 0):
            raise ValueError(
                "an exchange table needs columns of one size and counts of at least 0, got sizes "
                f"{sorted(sizes)} and a least count of {self.count.min(initial=0)}."
            )

    def __len__(self) -> int:
        return int(self.count.size)

    def sent(self, rank: int, ranks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What ``rank`` sends: its rows, target after target, and the number for each of ``ranks``."""
        moves = np.flatnonzero(self.source == rank)
        moves = moves[np.argsort(self.target[moves], kind="stable")]
        rows = _runs(self.start[moves], self.count[moves])
        return rows, _totals(self.target[moves], self.count[moves], ranks)

    def received(self, rank: int, ranks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Places, in move order, among rows arriving source after source; and rows from each of ``ranks``."""
        moves = np.flatnonzero(self.target == rank)
        arrival = np.argsort(self.source[moves], kind="stable")
        counts = self.count[moves]
        begin = np.empty_like(counts)
        begin[arrival] = np.cumsum(counts[arrival]) - counts[arrival]
        return _runs(begin, counts), _totals(self.source[moves], counts, ranks)


def _samples_of(plan: StepPlan, rank: int) -> NDArray[np.int64]:
    """Sample indices of a rank in the order of its slots."""
    mine = [plan.micro_batches.samples(int(m)) for m in plan.for_rank(rank)]
    return np.concatenate([np.zeros(0, np.int64), *mine])


def _runs(start: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers ``start .. start + count - 1`` of every run, one run after the other."""
    runs: NDArray[np.int64] = np.repeat(start - (np.cumsum(count) - count), count)
    runs += np.arange(runs.size)
    return runs


def _totals(rank: NDArray[np.int64], count: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    totals = np.zeros(ranks, np.int64)
    np.add.at(totals, rank, count)
    return totals
