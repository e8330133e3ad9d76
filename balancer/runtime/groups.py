"""Process groups of neighbouring data ranks, made once and reused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from balancer.topology import Topology

from .agreement import device_of
from .members import member_group
from .peers import RingGroup
from .protocol import RunnableBatch
from .world import data_peers


class ContextGroups:
    """A group for every allowed (degree, position).

    Powers of two get process groups of their own at multiples of the degree, so a rank is in at most
    log2(ranks) of them. Every other degree, at any position, is a `RingGroup`: members of one parent group
    that exchange point to point, so no degree costs a communicator. All ranks make their groups here, in
    ascending order of the degree; later calls look up and never create.

    Args:
        topology: the data ranks.
        degrees: CP degrees that plans may use; None: powers of two up to the number of ranks.
        device_mesh: where tensor- or pipeline-parallel peers share data ranks: the mesh that says so.
        ranks: [topology.ranks] global ranks of this process's data peers, in data order; instead of a mesh.
        parent: a process group of exactly these ranks, if there is one.
        own_groups: False: everything through the parent, for jobs where communicators are dear.

    Raises:
        RuntimeError: without an initialised ``torch.distributed``, for more than one rank.
        ValueError: degrees outside 1..ranks, or ranks that are not as many as the topology's.
    """

    def __init__(
        self,
        topology: Topology,
        degrees: Sequence[int] | None = None,
        *,
        device_mesh: Any = None,
        ranks: Sequence[int] | None = None,
        parent: Any = None,
        own_groups: bool = True,
    ) -> None:
        self.topology = topology
        self.degrees = tuple(sorted(set(degrees or _powers_of_two(topology.ranks))))
        if bad := [degree for degree in self.degrees if not 1 <= degree <= topology.ranks]:
            raise ValueError(f"CP degrees must lie in 1..{topology.ranks}, the data ranks; got {bad}.")
        self._groups: dict[tuple[int, ...], Any] = {}
        self._made: list[Any] = []
        if topology.ranks == 1:
            self.ranks: tuple[int, ...] = (0,)
            self.rank = 0
            return
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                f"groups of {topology.ranks} ranks need torch.distributed: call init_process_group first."
            )
        self.ranks = _global_ranks(topology, device_mesh, ranks)
        self.rank = self.ranks.index(dist.get_rank())
        self._make(parent, own_groups)

    @classmethod
    def from_device_mesh(cls, device_mesh: Any, degrees: Sequence[int] | None = None) -> ContextGroups:
        """Groups along the data- and context-parallel dimensions of a mesh."""
        topology, _, ranks = data_peers(device_mesh)
        return cls(topology, degrees, ranks=ranks)

    @classmethod
    def from_megatron(cls, parallel_state: Any, degrees: Sequence[int] | None = None) -> ContextGroups:
        """Groups inside Megatron-Core's data-parallel group with context parallelism.

        parallel_state: the module ``megatron.core.parallel_state``, after ``initialize_model_parallel``.
        """
        parent = parallel_state.get_data_parallel_group(with_context_parallel=True)
        ranks = dist.get_process_group_ranks(parent)
        stages = int(parallel_state.get_pipeline_model_parallel_world_size())
        topology = Topology(ranks=len(ranks), pipeline_stages=stages)
        return cls(topology, degrees, ranks=ranks, parent=parent)

    def __len__(self) -> int:
        """Process groups that were created for this rank."""
        return len(self._made)

    def get(self, first_rank: int, degree: int) -> Any:
        """The group of data ranks ``first_rank .. first_rank + degree - 1``; None for degree 1.

        Raises ValueError for a degree that was not allowed, or ranks that this one is not among.
        """
        if degree not in self.degrees:
            raise ValueError(
                f"CP degree {degree} is not among the allowed {list(self.degrees)}. Pass the plan's degrees "
                "to ContextGroups, on all ranks."
            )
        if not first_rank <= self.rank < first_rank + degree or first_rank + degree > self.topology.ranks:
            raise ValueError(
                f"data rank {self.rank} of {self.topology.ranks} is not in a group of ranks "
                f"{first_rank}..{first_rank + degree - 1}."
            )
        if degree == 1:
            return None
        members = self.ranks[first_rank : first_rank + degree]
        return self._groups.get(members) or RingGroup(self._parent, members)

    def attach(self, batch: RunnableBatch) -> RunnableBatch:
        """Set ``batch.cp_group``; returns the batch."""
        batch.cp_group = self.get(self.rank - batch.cp_rank, batch.cp_degree)
        return batch

    def close(self) -> None:
        """Destroy the groups made here. Each costs buffers on a GPU and some threads on a CPU."""
        for group in self._made:
            dist.destroy_process_group(group)
        self._made.clear()
        self._groups.clear()

    def _make(self, parent: Any, own_groups: bool) -> None:
        if parent is None:
            if len(self.ranks) == dist.get_world_size():
                parent = dist.group.WORLD
            else:
                parent = self._new_group(self.ranks)
        self._parent = parent
        for degree in self.degrees if own_groups else ():
            first = self.rank - self.rank % degree
            members = self.ranks[first : first + degree]
            if degree > 1 and degree & (degree - 1) == 0 and len(members) == degree:
                self._groups[members] = parent if members == self.ranks else self._new_group(members)
        # the first message of a group sets up its connections, which all its members must take part in
        dist.all_reduce(torch.zeros(1, device=device_of(parent)), group=parent)

    def _new_group(self, members: Sequence[int]) -> Any:
        # only members call: ranks of one group have its smaller groups in common or none, so orders agree
        group = member_group("context", members)
        self._made.append(group)
        return group


def _global_ranks(topology: Topology, device_mesh: Any, ranks: Sequence[int] | None) -> tuple[int, ...]:
    if device_mesh is not None:
        found = tuple(data_peers(device_mesh)[2])
    else:
        found = tuple(ranks if ranks is not None else range(dist.get_world_size()))
    if len(found) != topology.ranks:
        raise ValueError(
            f"topology has {topology.ranks} data ranks, the job {len(found)}. Pass device_mesh= or ranks= "
            "where tensor- or pipeline-parallel peers share them."
        )
    return found


def _powers_of_two(limit: int) -> list[int]:
    return [1 << power for power in range(limit.bit_length())]
