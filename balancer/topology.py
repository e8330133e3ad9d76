"""The shape of the cluster that a plan is made for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.planning.counts import check_count

SLOWEST, FASTEST = 0.001, 1000.0
"""Speeds that 2**-16 parts of a nanosecond describe to 2 %, and times of which stay within 64 bits."""


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
            numbers of 0.001 to 1,000, one a rank.
    """

    ranks: int
    ranks_per_node: int | None = None
    speed: NDArray[np.float64] | None = None
    pipeline_stages: int = 1

    def __post_init__(self) -> None:
        for name in ("ranks", "ranks_per_node", "pipeline_stages"):
            given = getattr(self, name)
            if name == "ranks_per_node" and given is None:
                continue
            object.__setattr__(self, name, check_count(f"Topology.{name}", given))
        if self.speed is not None:
            try:
                speed = np.asarray(self.speed, dtype=np.float64)
            except (TypeError, ValueError):
                speed = np.array([np.nan])
            if speed.shape != (self.ranks,) or not np.all(np.isfinite(speed) & (speed > 0)):
                raise ValueError(
                    f"Topology.speed must hold {self.ranks} finite positive numbers, one a rank, got "
                    f"{self.speed!r}. Leave it out for equal ranks; take a rank out of the job to stop it."
                )
            if speed.min() < SLOWEST or speed.max() > FASTEST:
                raise ValueError(
                    f"Topology.speed is relative to the nominal 1.0, at {SLOWEST}..{FASTEST}; "
                    f"got {speed.min()} to {speed.max()}. Divide by the usual rank's speed."
                )
            object.__setattr__(self, "speed", speed)

    def group_starts(self, cp_degree: int) -> NDArray[np.int64]:
        """First ranks of the groups of ``cp_degree`` neighbours that a plan may use.

        Multiples of the degree, so that groups of degrees that divide each other are nested or apart. A
        group that would fit into a node does not lie across two.
        """
        starts = np.arange(0, self.ranks - cp_degree + 1, cp_degree, dtype=np.int64)
        if self.ranks_per_node is None or cp_degree > self.ranks_per_node:
            return starts
        inside: NDArray[np.int64] = starts[starts % self.ranks_per_node + cp_degree <= self.ranks_per_node]
        return inside


def ulysses_degrees(num_heads: int, ranks: int, num_key_value_heads: int | None = None) -> tuple[int, ...]:
    """Degrees at which each rank of a group gets a whole number of heads, at most ``ranks``.

    Ulysses trades heads for tokens, so that the degree must divide the number of heads. Key and value heads
    may be fewer and are then repeated; the degree must divide their number or be a multiple of it.
    """
    shared = num_heads if num_key_value_heads is None else num_key_value_heads
    if num_heads < 1 or shared < 1 or num_heads % shared:
        raise ValueError(
            f"num_heads must be a positive multiple of num_key_value_heads, got {num_heads} and {shared}."
        )
    return tuple(
        d
        for d in range(1, min(num_heads, ranks) + 1)
        if num_heads % d == 0 and (shared % d == 0 or d % shared == 0)
    )
