"""What a step with encoders is made of, and what its plan says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from balancer.costs.checks import check_coefficient
from balancer.costs.model import CostModel
from balancer.phasing.exchange import Exchange
from balancer.plan import StepPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """An encoder: its work is counted in units of `SampleTable.phases`, patches or frames."""

    cost: CostModel
    """Seconds by units instead of tokens."""
    bytes_per_unit: float | None = None
    """Bytes of output that the language model reads for each unit; ``None``: outputs do not travel."""
    max_units: int | None = None
    """Units that one rank can hold in one micro-batch; ``None``: any number."""
    cp_degrees: tuple[int, ...] = (1,)
    """Ranks that may share one sample's units when the encoder is divided on its own."""

    def __post_init__(self) -> None:
        if self.bytes_per_unit is not None:
            check_coefficient("Phase.bytes_per_unit", self.bytes_per_unit)
        if self.max_units is not None and self.max_units < 1:
            raise ValueError(f"Phase.max_units must be at least 1, got {self.max_units!r}.")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PhasePlan:
    """Who encodes and who reads what. All plans number samples by their row in the step's table."""

    mode: str
    """``"joint"``: samples are encoded where they are read. ``"separate"``: outputs travel."""
    language: StepPlan
    encoders: Mapping[str, StepPlan]
    """Plan of each encoder; it holds the samples that have units of this kind."""
    exchanges: Mapping[str, Exchange]
    """What travels from each encoder; empty where it is joint."""
    time_s: float
    """Predicted step time."""
    lower_bound_s: float
    """Proven: no plan is faster, joint or separate."""
    alternatives: Mapping[str, float]
    """Predicted step time of each mode that was planned."""

    @property
    def gap(self) -> float:
        """Predicted step time / proven lower bound - 1; 0.0 for an empty step."""
        return self.time_s / self.lower_bound_s - 1.0 if self.lower_bound_s > 0 else 0.0

    @property
    def imbalance(self) -> Mapping[str, float]:
        """Slowest rank's predicted time / mean, of each phase on its own."""
        return {
            "language": self.language.imbalance,
            **{name: plan.imbalance for name, plan in self.encoders.items()},
        }

    def digest(self) -> int:
        """64 bits that two equal plans share."""
        digest = self.language.digest()
        for name in sorted(self.encoders):
            digest = (digest * 0x9E3779B97F4A7C15 + self.encoders[name].digest()) % 2**64
        return digest
