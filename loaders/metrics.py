"""What a loader can tell about the steps it has given out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.plan import MicroBatches, StepPlan
from loaders.media.presence import Fillers
from loaders.planning.limits import Limits
from packing._rows import extremes, int_sum
from packing.table import SampleTable


@dataclass(kw_only=True, slots=True)
class Spread:
    """How evenly ranks shared something: sums over steps of the least, the most and the mean of a step."""

    least: float = 0.0
    most: float = 0.0
    mean: float = 0.0

    def add(self, load: NDArray[np.float64]) -> None:
        """load: [R] of one step."""
        if load.size == 1:
            self.add_only(float(load[0]))
            return
        self.least += float(load.min())
        self.most += float(load.max())
        self.mean += float(load.mean())

    def add_only(self, load: float) -> None:
        """What the only rank has of one step."""
        self.least, self.most, self.mean = self.least + load, self.most + load, self.mean + load

    def report(self, steps: int) -> dict[str, float]:
        """Means over the steps."""
        return {"min": self.least / steps, "max": self.most / steps, "mean": self.mean / steps}


@dataclass(kw_only=True, slots=True, eq=False)
class Metrics:
    """Sums over the steps given out in this process. They are of whole steps, all ranks together."""

    max_tokens: int
    limits: Limits | None = None
    """What closes micro-batches; ``None``: not looked at."""
    closed: Counter[str] = field(default_factory=Counter)
    """Micro-batches by what closed them, see `Limits.closed`."""
    most_tokens: int = 0
    """Tokens of the largest micro-batch, on each of its ranks."""
    steps: int = 0
    samples: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    rank_tokens: Spread = field(default_factory=Spread)
    """Tokens of each rank in a step, padding aside."""
    rank_loss_tokens: Spread = field(default_factory=Spread)
    """Labels that count, of each rank in a step."""
    capacity_tokens: int = 0
    """Packs times ``max_tokens``: what the micro-batches could hold."""
    padding_tokens: int = 0
    """Alignment padding of context-parallel micro-batches."""
    imbalance: float = 0.0
    gap: float = 0.0
    plan_s: float = 0.0
    wait_s: float = 0.0
    """Time this rank's training loop waited for batches."""
    batches: int = 0
    dummies: int = 0
    degrees: dict[int, int] = field(default_factory=dict)
    units: dict[str, int] = field(default_factory=dict)
    """Patches and frames of the steps, by phase."""
    phase_imbalance: dict[str, float] = field(default_factory=dict)
    """Sums over the steps of each phase's largest rank / mean."""
    counts: Counter[str] = field(default_factory=Counter)
    """What happened to samples of this rank when they were read."""
    filled: Counter[str] = field(default_factory=Counter)
    """Media added because other ranks had some, by kind."""
    tokens_by_source: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    samples_by_source: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(cls, max_tokens: int, num_sources: int, limits: Limits | None = None) -> Metrics:
        """Nothing given out yet."""
        by_source = np.zeros(num_sources, np.int64)
        return cls(
            max_tokens=max_tokens,
            limits=limits,
            tokens_by_source=by_source,
            samples_by_source=by_source.copy(),
        )

    def add_step(
        self,
        plan: StepPlan,
        table: SampleTable,
        plan_s: float,
        fillers: Fillers | None = None,
        encoders: Mapping[str, StepPlan] = MappingProxyType({}),
    ) -> None:
        """Count a step whose last micro-batch has been given out; ``encoders`` are plans of their own."""
        if fillers is not None:
            self.filled.update(fillers.kind)
        for name, units in table.phases.items():
            load = unit_load(encoders.get(name, plan), units)
            mean = float(load.mean())
            self.units[name] = self.units.get(name, 0) + int(units.sum())
            imbalance = float(load.max()) / mean if mean else 1.0
            self.phase_imbalance[name] = self.phase_imbalance.get(name, 0.0) + imbalance
        batches = plan.micro_batches
        if self.limits is not None:
            self.closed.update(self.limits.closed(plan, table))
        tokens, loss_tokens = int_sum(table.num_tokens), int_sum(table.num_loss_tokens)
        self.steps += 1
        self.tokens += tokens
        self.loss_tokens += loss_tokens
        if plan.ranks == 1:
            self.rank_tokens.add_only(tokens)
            self.rank_loss_tokens.add_only(loss_tokens)
        else:
            self.rank_tokens.add(unit_load(plan, table.num_tokens))
            self.rank_loss_tokens.add(unit_load(plan, table.num_loss_tokens))
        self.padding_tokens += int_sum(batches.tokens) - tokens
        self.imbalance += plan.imbalance
        self.gap += plan.gap
        self.plan_s += plan_s
        for degree, count, most in by_degree(batches):
            self.degrees[degree] = self.degrees.get(degree, 0) + count
            self.capacity_tokens += degree * count * self.max_tokens
            self.most_tokens = max(self.most_tokens, most // degree)
        size = self.tokens_by_source.size
        whole = len(table) - int(np.count_nonzero(table.start))
        self.samples += whole
        if size == 1:
            self.samples_by_source += whole
            self.tokens_by_source += tokens
        else:
            self.samples_by_source += np.bincount(table.source[table.start == 0], minlength=size)
            self.tokens_by_source += np.bincount(table.source, table.num_tokens, size).astype(np.int64)

    def report(self, names: Sequence[str], filler_sizes: Mapping[str, int]) -> dict[str, Any]:
        """Plain numbers; means over the steps where that is what a step has.

        Args:
            names: of the sources.
            filler_sizes: tokens of the filler medium of each kind.
        """
        steps = max(self.steps, 1)
        filler_tokens = sum(count * filler_sizes[kind] for kind, count in self.filled.items())
        return {
            "steps": self.steps,
            "samples": self.samples,
            "tokens": self.tokens,
            "loss_tokens": self.loss_tokens,
            "rank_tokens": self.rank_tokens.report(steps),
            "rank_loss_tokens": self.rank_loss_tokens.report(steps),
            "fill": self.tokens / self.capacity_tokens if self.capacity_tokens else 0.0,
            "padding_tokens": self.padding_tokens,
            "imbalance": self.imbalance / steps if self.steps else 1.0,
            "gap": self.gap / steps,
            "plan_ms": self.plan_s * 1e3 / steps,
            "wait_s": self.wait_s,
            "batches": self.batches,
            "dummies": self.dummies,
            "closed_by": dict(sorted(self.closed.items())),
            "most_tokens": self.most_tokens,
            "cp_degrees": dict(sorted(self.degrees.items())),
            "units": dict(sorted(self.units.items())),
            "phase_imbalance": {name: total / steps for name, total in sorted(self.phase_imbalance.items())},
            "filler_media": dict(sorted(self.filled.items())),
            "filler_share": filler_tokens / max(self.tokens + filler_tokens, 1),
            "rejected": self.counts["rejected"],
            "corrected": self.counts["corrected"],
            "repaired": self.counts["repaired"],
            "tokens_by_source": dict(zip(names, self.tokens_by_source.tolist(), strict=True)),
            "samples_by_source": dict(zip(names, self.samples_by_source.tolist(), strict=True)),
        }


def by_degree(batches: MicroBatches) -> Iterator[tuple[int, int, int]]:
    """Degrees that micro-batches have, how many have each, and the tokens of the largest of those."""
    if not len(batches):
        return
    least, most = extremes(batches.cp_degree)
    if least == most:
        yield least, len(batches), extremes(batches.tokens)[1]
        return
    counts = np.bincount(batches.cp_degree)
    for degree in np.flatnonzero(counts).tolist():
        yield degree, int(counts[degree]), int(batches.tokens[batches.cp_degree == degree].max())


def unit_load(plan: StepPlan, units: NDArray[np.int64]) -> NDArray[np.float64]:
    """[R] units of one kind that each rank works on; ranks that share a micro-batch share its units
    evenly.
    """
    if plan.ranks == 1:
        return np.array([units.sum()], np.float64)
    batches = plan.micro_batches
    sums = np.concatenate(([0], np.cumsum(units[batches.order])))
    of_batch = np.diff(sums[batches.offsets]) / batches.cp_degree  # [M] on each of its ranks
    begins = np.cumsum(batches.cp_degree) - batches.cp_degree
    within = np.arange(int(batches.cp_degree.sum())) - np.repeat(begins, batches.cp_degree)
    rank = np.repeat(batches.first_rank, batches.cp_degree) + within
    return np.bincount(rank, np.repeat(of_batch, batches.cp_degree), plan.ranks).astype(np.float64)
