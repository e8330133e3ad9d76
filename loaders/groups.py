"""The process groups that a balanced loader's batches are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from balancer import Topology
from balancer.runtime import ContextGroups, process_rank


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
