"""What a report is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from balancer.cost import CostModel
from balancer.costs.memory import MemoryEstimate
from balancer.simulation import ModelFlops
from balancer.topology import Topology

Progress = Callable[[str, int, int], None]
"""Called with (what is done, how many of it, of how many)."""

SAMPLES_A_RANK = 16
"""Samples of a step for each rank, where no global batch size is given."""

WIDEST = 64
"""Widest group that is considered where no degrees are given."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a training run can choose."""

    max_tokens: int
    cp_degrees: tuple[int, ...]
    sync: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.max_tokens:,} tokens, degrees {', '.join(map(str, self.cp_degrees))}, sync {self.sync}"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Question:
    """A cluster, a model and what its owner does now."""

    files: tuple[str, ...]
    topology: Topology
    given: Setting
    """What the user runs, or means to."""
    cost: CostModel
    global_batch_size: int
    steps: int
    """Steps of the comparison."""
    search_steps: int = 8
    """Steps that each setting of the search is tried on."""
    jitter: float = 0.0
    overhead_s: float = 0.0
    seed: int = 0
    model: str = ""
    """The model in words; empty where none is given."""
    gpu: str = ""
    tensor_parallel: int = 1
    recompute: str = "none"
    flops: ModelFlops | None = None
    memory: MemoryEstimate | None = None
    cost_code: str = "CostModel.generic()"
    """How ``cost`` is made, as Python."""
    source_code: str = ""
    """How the samples are opened, as Python; empty: from ``files``."""

    def with_cost(self, cost: CostModel) -> Question:
        """The same question under another cost."""
        return replace(self, cost=cost)


def default_degrees(longest: int, *, max_tokens: int, topology: Topology) -> tuple[int, ...]:
    """Powers of two up to a node, and as far beyond as the longest sample needs; at most 64."""
    most = min(topology.ranks, WIDEST)
    needed = -(-longest // max_tokens)
    wide = max(topology.ranks_per_node or topology.ranks, needed)
    degrees: list[int] = []
    degree = 1
    while degree <= most and (not degrees or degrees[-1] < wide):
        degrees.append(degree)
        degree *= 2
    return tuple(degrees)
