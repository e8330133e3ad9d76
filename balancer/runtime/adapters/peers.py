"""Tensor- and pipeline-parallel peers run one data rank's batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
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

    Raises:
        ValueError: on the first rank, without a loader.
        Exception: on the first rank, what its loader raises.
        RuntimeError: on the others in both cases: names the rank and says what it raised.
    """
    source = dist.get_process_group_ranks(group)[0]
    if dist.get_rank() != source:
        yield from _heard(source, group, groups)
        return
    try:
        if loader is None:
            raise ValueError(f"global rank {source} is the first of its peers and must pass the loader.")
        for batch in loader:
            _tell((batch, ""), source, group)
            yield batch
    except Exception as error:
        with suppress(
            Exception
        ):  # peers wait for a batch, if they are there: what they do not hear keeps them
            _tell((None, f"{type(error).__name__}: {error}"), source, group)
        raise
    _tell((None, ""), source, group)


def _tell(parcel: tuple[Any, str], source: int, group: Any) -> tuple[Any, str]:
    parcels: list[Any] = [parcel]
    dist.broadcast_object_list(parcels, src=source, group=group)
    told: tuple[Any, str] = parcels[0]
    return told


def _heard(source: int, group: Any, groups: ContextGroups | None) -> Iterator[Any]:
    while True:
        batch, failure = _tell((None, ""), source, group)
        if failure:
            raise RuntimeError(f"global rank {source}, which reads for its peers, failed: {failure}")
        if batch is None:
            return
        if groups is not None:
            groups.attach(batch)
        yield batch
