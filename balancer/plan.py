"""Who computes what in one optimizer step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MicroBatches:
    """Axis: M = micro-batches of the step, in execution order for every rank."""

    first_rank: NDArray[np.int32]
    """[M] First of the neighbouring ranks ``first_rank .. first_rank + cp_degree - 1``."""
    cp_degree: NDArray[np.int32]
    """[M] Ranks that share the micro-batch's sequences."""
    slot: NDArray[np.int32]
    """[M] Place in the ranks' lists; equal on all ranks of the group."""
    tokens: NDArray[np.int64]
    """[M] Tokens of the whole group, alignment padding included; at most ``cp_degree * max_tokens``."""
    cost_s: NDArray[np.float64]
    """[M] Predicted seconds of forward + backward on each rank of the group, at nominal speed."""
    order: NDArray[np.int64]
    """[S] Sample indices into the step's table, micro-batch after micro-batch."""
    offsets: NDArray[np.int64]
    """[M + 1] Micro-batch m holds samples ``order[offsets[m]:offsets[m + 1]]``."""

    def __len__(self) -> int:
        return int(self.first_rank.size)

    def __getitem__(self, column: str) -> NDArray[np.generic]:
        """A column by name, as data frames have it."""
        if column not in self.__slots__:
            raise KeyError(f"no column {column!r}; there are {', '.join(self.__slots__)}")
        return getattr(self, column)  # type: ignore[no-any-return]

    def samples(self, m: int) -> NDArray[np.int64]:
        """Sample indices of micro-batch m."""
        return self.order[self.offsets[m] : self.offsets[m + 1]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepPlan:
    """A plan of one step. Data only: picklable, no tensors, devices or process groups.

    Invariants: every sample of the step stands in exactly one micro-batch; no micro-batch exceeds
    its cap; equal (table, topology, cost, seed) give an equal plan on every rank.
    """

    micro_batches: MicroBatches
    ranks: int
    sync: str
    """``"step"``: ranks meet once a step. ``"micro_batch"``: they meet in every slot."""
    num_slots: int
    """Slots of the longest list; under ``sync="micro_batch"`` every rank runs that many."""
    rank_time_s: NDArray[np.float64]
    """[R] Predicted seconds each rank computes."""
    time_s: float
    """Predicted step time."""
    lower_bound_s: float
    """Proven: no plan under the same cost model, cap and topology is faster."""
    policy: str = "balanced"

    @property
    def gap(self) -> float:
        """Predicted step time / proven lower bound - 1; 0.0 for an empty step."""
        return self.time_s / self.lower_bound_s - 1.0 if self.lower_bound_s > 0 else 0.0

    @property
    def imbalance(self) -> float:
        """Slowest rank's predicted time / mean; 1.0 is perfect, also for an empty step."""
        if self.ranks == 1:
            return 1.0
        mean = float(self.rank_time_s.mean())
        return float(self.rank_time_s.max()) / mean if mean > 0 else 1.0

    @property
    def order(self) -> NDArray[np.int64]:
        """[S] Sample indices, micro-batch after micro-batch."""
        return self.micro_batches.order

    @property
    def offsets(self) -> NDArray[np.int64]:
        """[M + 1] Bounds of the micro-batches in ``order``."""
        return self.micro_batches.offsets

    def for_rank(self, rank: int) -> NDArray[np.int64]:
        """Indices of the micro-batches that ``rank`` takes part in, in slot order."""
        if not 0 <= rank < self.ranks:
            raise ValueError(f"rank must lie in 0..{self.ranks - 1}, got {rank!r}.")
        batches = self.micro_batches
        mine = (batches.first_rank <= rank) & (rank < batches.first_rank + batches.cp_degree)
        index = np.flatnonzero(mine)
        return index[np.argsort(batches.slot[index], kind="stable")]

    def digest(self) -> int:
        """64 bits that two equal plans share, on any platform."""
        hasher = hashlib.blake2b(digest_size=8)
        hasher.update(f"1|{self.ranks}|{self.sync}|{self.num_slots}".encode())
        batches = self.micro_batches
        for column in (batches.first_rank, batches.cp_degree, batches.slot, batches.order, batches.offsets):
            hasher.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        return int.from_bytes(hasher.digest(), "little")

    def to_bytes(self) -> bytes:
        """The plan as versioned bytes, equal on every platform; see `balancer.views.serial`."""
        from balancer.views.serial import plan_to_bytes

        return plan_to_bytes(self)

    @staticmethod
    def from_bytes(data: bytes) -> StepPlan:
        """The plan that `to_bytes` wrote. Raises ValueError for anything else."""
        from balancer.views.serial import plan_from_bytes

        return plan_from_bytes(data)

    def to_json(self) -> str:
        """The plan as versioned JSON, with every bit of its numbers."""
        from balancer.views.serial import plan_to_json

        return plan_to_json(self)

    @staticmethod
    def from_json(text: str) -> StepPlan:
        """The plan that `to_json` wrote. Raises ValueError for anything else."""
        from balancer.views.serial import plan_from_json

        return plan_from_json(text)

    def table(self, *, max_ranks: int = 16) -> Table:
        """Time, idle share and load of each rank, for ``rich.print``."""
        from balancer.views.table import plan_table

        return plan_table(self, max_ranks=max_ranks)

    def plot(self, path: str | Path | None = None) -> Figure:
        """What each rank does when, as a matplotlib figure, saved to ``path`` where one is given."""
        from balancer.views.plot import plot_plan

        return plot_plan(self, path)

    def trace(self, path: str | Path | None = None) -> dict[str, Any]:
        """The same as a timeline that Perfetto opens, written to ``path`` where one is given."""
        from balancer.views.trace import trace_plans

        return trace_plans(self, path)
