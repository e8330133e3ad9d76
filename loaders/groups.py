"""The process groups of a balanced loader: those that batches are given, and that of streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from balancer import Topology
from balancer.runtime import ContextGroups, HostGroup, process_rank
from balancer.runtime.world import data_peers


def context_groups(
    topology: Topology, rank: int, degrees: Sequence[int], device_mesh: Any
) -> ContextGroups | None:
    """Groups for every degree, or ``None`` where no degree is above 1 or this process only plays a rank.

    Collective where it makes groups: all data ranks must come here.
    """
    process = process_rank()
    if max(degrees) == 1 or process is None:
        return None
    if device_mesh is None and process != (rank, topology.ranks):
        return None
    return ContextGroups(topology, degrees, device_mesh=device_mesh)


def host_group(topology: Topology, rank: int, device_mesh: Any) -> HostGroup:
    """The data ranks as they talk about their streams. Collective: all data ranks must come here.

    Raises:
        RuntimeError: ranks that are only played and cannot be asked.
    """
    if topology.ranks == 1:
        return HostGroup()
    process = process_rank()
    if process is not None and device_mesh is not None:
        return HostGroup(data_peers(device_mesh)[2])
    if process == (rank, topology.ranks):
        return HostGroup(range(topology.ranks))
    raise RuntimeError(
        f"a stream on {topology.ranks} data ranks must agree on each step, but torch.distributed has no "
        "group of exactly these ranks. Call init_process_group first, pass device_mesh= where tensor- or "
        "pipeline-parallel peers share data ranks, or use data whose rows are addressed by number, from "
        "which every rank plans alone."
    )


def has_peers(topology: Topology) -> bool:
    """Whether other processes have this one's data rank: those of tensor and pipeline parallelism."""
    process = process_rank()
    return process is not None and process[1] > topology.ranks
