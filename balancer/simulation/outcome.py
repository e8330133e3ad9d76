"""What the simulated steps of one policy took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SimulatedPolicy:
    """Columns of one policy's steps. Axes: N = steps, R = data ranks.

    A policy that cannot plan a step has the steps before it, and the reason in ``error``.
    """

    policy: str
    step_s: Floats
    """[N] Simulated seconds."""
    planned_s: Floats
    """[N] Seconds that the plan predicted: no jitter, no stragglers, a formula for the pipeline."""
    lower_bound_s: Floats
    """[N] Proven bound of ``planned_s`` over all plans."""
    tokens: NDArray[np.int64]
    """[N] Tokens of the step's samples, padding not counted."""
    busy_s: Floats
    """[N] Seconds that GPUs compute, summed over them."""
    rank_busy_s: Floats
    """[R] Seconds that each rank computes in all steps, the mean over its stages."""
    held_tokens: Floats
    """[N] Most tokens that a GPU holds at once, padding included: forward done, backward not."""
    memory: Floats
    """[N] Largest share of a rank's room in use; room is ``max_tokens`` for each micro-batch in flight."""
    model_flop: Floats | None
    """[N] FLOPs that the model needs; ``None`` where no `ModelFlops` are given."""
    peak: float | None
    """FLOP/s of one stage of one rank, from `ModelFlops`."""
    gpus: int
    """Ranks times pipeline stages."""
    error: str = ""
    """Why the policy cannot plan these steps; empty where it can."""

    def __len__(self) -> int:
        return int(self.step_s.size)

    @property
    def time_s(self) -> float:
        """Simulated seconds of all steps."""
        return float(self.step_s.sum())

    @property
    def mean_s(self) -> float:
        """Mean step time; 0.0 without steps."""
        return float(self.step_s.mean()) if len(self) else 0.0

    def quantiles_s(self, shares: Sequence[float] = (0.05, 0.5, 0.95, 0.99)) -> Floats:
        """Step times that these shares of the steps do not exceed; zeros without steps."""
        if not len(self):
            return np.zeros(len(shares))
        quantiles: Floats = np.quantile(self.step_s, shares)
        return quantiles

    @property
    def idle(self) -> float:
        """Share of the GPUs' time in which they wait, pipeline bubbles included."""
        return (
            max(1.0 - float(self.busy_s.sum()) / (self.gpus * self.time_s), 0.0) if self.time_s > 0 else 0.0
        )

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all ranks in each second."""
        return float(self.tokens.sum()) / self.time_s if self.time_s > 0 else 0.0

    @property
    def mfu(self) -> float | None:
        """Share of the GPUs' peak that the model's FLOPs use; ``None`` where they are unknown."""
        if self.model_flop is None or self.peak is None or self.time_s == 0:
            return None
        return float(self.model_flop.sum()) / (self.peak * self.gpus * self.time_s)
