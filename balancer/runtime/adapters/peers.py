"""Tensor- and pipeline-parallel peers run one data rank's batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch.distributed as dist

from balancer.runtime.groups import ContextGroups


def broadcast_batches(
    loader: Iterable[Any] | None, group: Any, groups: ContextGroups | None = None
) -> Iterator[Any]:
    """The batches of the group's first rank, on all of its ranks.

    Decoding so happens once a data rank. The other way is that every peer reads for itself, from a loader
    with the same ``rank=``: nothing is sent, everything is read as often as there are peers.

    Args:
        loader: on the first rank of ``group``; None on the others, where it is not looked at.
        group: the peers that share a data rank.
        groups: this process's own context-parallel groups; a process group cannot travel with a batch.
    """
    source = dist.get_process_group_ranks(group)[0]
    mine = dist.get_rank() == source
    if mine and loader is None:
        raise ValueError(f"global rank {source} is the first of its peers and must pass the loader.")
    batches = iter(loader) if mine and loader is not None else iter(())
    while True:
        parcel = [next(batches, None)]
        dist.broadcast_object_list(parcel, src=source, group=group)
        if parcel[0] is None:
            return
        batch = parcel[0]
        if groups is not None and not mine:
            groups.attach(batch)
        yield batch
