"""The shape of the cluster that a plan is made for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """Data ranks (data-parallel x context-parallel mesh, flattened) and how they are connected.

    Args:
        ranks: number of data ranks. Tensor- and pipeline-parallel peers share one.
        ranks_per_node: neighbouring ranks joined by the fast links; ``None``: all of them.
        speed: [ranks] relative speed of each rank, 1.0 = nominal; ``None``: all equal.
        pipeline_stages: stages that every micro-batch passes through.

    Raises:
        ValueError: ranks, ranks_per_node or pipeline_stages below 1, or speeds that are not
            finite positive numbers, one a rank.
    """

    ranks: int
    ranks_per_node: int | None = None
    speed: NDArray[np.float64] | None = None
    pipeline_stages: int = 1

    def __post_init__(self) -> None:
        for name in ("ranks", "ranks_per_node", "pipeline_stages"):
            count = getattr(self, name)
            if count is not None and (int(count) != count or count < 1):
                raise ValueError(f"Topology.{name} must be a whole number of at least 1, got {count!r}.")
        if self.speed is not None:
            speed = np.asarray(self.speed, dtype=np.float64)
            if speed.shape != (self.ranks,) or not np.all(np.isfinite(speed) & (speed > 0)):
                raise ValueError(
                    f"Topology.speed must hold {self.ranks} finite positive numbers, one a rank, got "
                    f"{self.speed!r}. Leave it out for equal ranks; take a rank out of the job to stop it."
                )
            object.__setattr__(self, "speed", speed)
