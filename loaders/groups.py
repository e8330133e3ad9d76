"""The process groups that a balanced loader's batches are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from balancer import Topology
from balancer.runtime import ContextGroups


def context_groups(
    topology: Topology, rank: int, degrees: Sequence[int], device_mesh: Any
) -> ContextGroups | None:
    """Groups for every degree, or ``None`` where no degree is above 1 or this process only plays a rank.

    Collective where it makes groups: all data ranks must come here.
    """
    if max(degrees) == 1 or not (dist.is_available() and dist.is_initialized()):
        return None
    if device_mesh is None and (dist.get_world_size() != topology.ranks or dist.get_rank() != rank):
        return None
    return ContextGroups(topology, degrees, device_mesh=device_mesh)
