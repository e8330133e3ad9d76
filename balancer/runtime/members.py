"""Process groups that their members alone make, however many groups each of them is in already.

``dist.new_group`` must be called by all processes of the job, or, synchronised among the members, by members
that are all in equally many groups: their number is part of the name under which they look for each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .agreement import device_of


def fresh_name(purpose: str, ranks: Sequence[int]) -> str:
    """A name for the next group of these ranks that is made for a purpose; equal on all members.

    The job's store counts, one number for each member, so that members agree as long as they make the groups
    of equal ranks in equal order. What other groups they are in does not matter.
    """
    joined = "-".join(map(str, ranks))
    label = joined if len(joined) <= 32 else hashlib.blake2b(joined.encode(), digest_size=16).hexdigest()
    number = default_store().add(f"evenload/{purpose}/{label}/of/{dist.get_rank()}", 1)
    return f"evenload/{purpose}/{label}/{number}"


def member_group(purpose: str, ranks: Sequence[int]) -> Any:
    """A process group of the job's own backend that only its members, ``ranks`` in this order, call for.

    It is known to torch like one of ``dist.new_group``, and is destroyed in the same way, once all members
    have it: there is no barrier here.
    """
    c10d: Any = dist.distributed_c10d
    world: Any = dist.group.WORLD
    backend, store = c10d._world.pg_map[world]
    members = list(ranks)
    device = world.bound_device_id
    with _unbound(world):
        group, _ = c10d._new_process_group_helper(
            len(members),
            members.index(dist.get_rank()),
            members,
            dist.Backend(backend),
            store,
            fresh_name(purpose, members),
            timeout=timeout(),
            device_id=device,
            group_desc=purpose,
        )
    c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(members)}
    return group


@contextmanager
def _unbound(world: Any) -> Iterator[None]:
    """Hide that the job's group is bound to a GPU: NCCL would split the new one off, with all ranks' help."""
    device = world.bound_device_id
    world.bound_device_id = None
    try:
        yield
    finally:
        world.bound_device_id = device


def default_store() -> Any:
    """What the processes of the job found each other by."""
    return dist.distributed_c10d._get_default_store()


def timeout() -> timedelta:
    """The default group's own, as far as torch tells it."""
    with suppress(AttributeError, RuntimeError):
        world: Any = dist.group.WORLD
        found = world._get_backend(device_of()).options._timeout
        if isinstance(found, timedelta):
            return found
    return dist.default_pg_timeout
