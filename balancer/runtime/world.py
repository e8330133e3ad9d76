"""Which data rank this process is, and in which topology."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from balancer.topology import Topology

DATA_DIMS = frozenset(
    {"dp", "dp_replicate", "dp_shard", "dp_shard_cp", "dp_cp", "cp", "data", "context", "fsdp", "ddp"}
    | {"replicate", "shard", "hsdp", "data_parallel", "context_parallel", "batch"}
)
"""Mesh dimensions along which ranks hold different tokens."""

PIPELINE_DIMS = frozenset({"pp", "pipeline", "pipeline_parallel"})
PEER_DIMS = PIPELINE_DIMS | {"tp", "tensor", "tensor_parallel", "model", "ep", "etp", "expert"}
"""Mesh dimensions whose ranks work on the same tokens: they share a data rank."""


def world(
    topology: Topology | None = None,
    rank: int | None = None,
    device_mesh: Any = None,
    *,
    data_dims: Sequence[str] | None = None,
) -> tuple[Topology, int]:
    """The topology of the job and this process's data rank in it.

    The first that is given counts: an explicit ``topology`` with ``rank``; a ``device_mesh``, whose
    data- and context-parallel dimensions are flattened in mesh order while tensor- and
    pipeline-parallel peers share one rank; an initialised ``torch.distributed`` with one data rank a
    process; otherwise one rank.

    Args:
        topology: shape of the cluster; alone it takes its rank from ``device_mesh`` or ``torch.distributed``.
        rank: data rank of this process in ``topology``.
        device_mesh: a ``torch.distributed.device_mesh.DeviceMesh``.
        data_dims: names of the mesh dimensions that hold different tokens, where theirs are unusual.

    Raises:
        ValueError: a rank without a topology or outside of it, mesh dimensions of unknown meaning, or
            a topology of another size than the mesh or the job.
    """
    if rank is not None:
        if topology is None:
            raise ValueError(f"rank={rank} needs a topology: pass topology=Topology(ranks=...) with it.")
        if not 0 <= rank < topology.ranks:
            raise ValueError(
                f"rank must lie in 0..{topology.ranks - 1}, the ranks of the topology; got {rank}."
            )
        return topology, rank
    if device_mesh is not None:
        found, place, _ = data_peers(device_mesh, data_dims)
    elif (process := process_rank()) is not None:
        place, size = process
        per_node = _local_world_size()
        found = Topology(ranks=size, ranks_per_node=per_node if size % per_node == 0 else None)
    else:
        found, place = Topology(ranks=1), 0
    if topology is None:
        return found, place
    if topology.ranks != found.ranks:
        raise ValueError(
            f"topology has {topology.ranks} data ranks, the job {found.ranks}. Pass rank= with it, or a "
            "device_mesh whose data dimensions multiply to that number."
        )
    return topology, place


def process_rank() -> tuple[int, int] | None:
    """Rank of this process in ``torch.distributed`` and their number; ``None`` where it is not in use."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return None


def data_peers(mesh: Any, data_dims: Sequence[str] | None = None) -> tuple[Topology, int, list[int]]:
    """Topology and data rank of this process in a mesh, and the global ranks of its data peers in order.

    The peers have this process's own place along the other dimensions.
    """
    names: tuple[str, ...] = tuple(mesh.mesh_dim_names or ())
    if not names:
        if mesh.ndim != 1:
            raise ValueError(
                f"a DeviceMesh of {mesh.ndim} dimensions must name them, so that tensor-parallel "
                "peers can be told from data ranks. Pass mesh_dim_names=('dp', 'tp') to init_device_mesh."
            )
        names, data_dims = ("dp",), ("dp",)
    if data_dims is None:
        unknown = [name for name in names if name not in DATA_DIMS | PEER_DIMS]
        if unknown:
            raise ValueError(
                f"mesh dimensions {unknown} of {names} may hold equal or different tokens. Pass data_dims= "
                "with the names of those along which ranks hold different tokens."
            )
        data_dims = [name for name in names if name in DATA_DIMS]
    elif missing := [name for name in data_dims if name not in names]:
        raise ValueError(f"data_dims {missing} are not among the mesh dimensions {names}.")
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError(f"global rank {dist.get_rank()} is not part of the device mesh {mesh}.")
    ranks, place, stages = 1, 0, 1
    for name, at, size in zip(names, coordinate, mesh.mesh.shape, strict=True):
        if name in data_dims:
            ranks, place = ranks * size, place * size + at
        elif name in PIPELINE_DIMS:
            stages *= size
    slices = tuple(
        slice(None) if name in data_dims else at for name, at in zip(names, coordinate, strict=True)
    )
    peers = [int(peer) for peer in mesh.mesh[slices].reshape(-1)]
    per_node = _ranks_per_node(peers)
    return Topology(ranks=ranks, ranks_per_node=per_node, pipeline_stages=stages), place, peers


def _ranks_per_node(peers: Sequence[int]) -> int:
    """Data ranks that neighbour each other inside a node; 1 where nodes hold unequal runs of them."""
    nodes = [peer // _local_world_size() for peer in peers]
    size = nodes.count(nodes[0])
    runs = [nodes[at : at + size] for at in range(0, len(nodes), size)]
    regular = all(len(run) == size and len(set(run)) == 1 for run in runs)
    return size if regular else 1


def _local_world_size() -> int:
    """Processes on this node, as torchrun tells them; all of them where nothing is told."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(told) if told.isdigit() and int(told) > 0 else dist.get_world_size()
