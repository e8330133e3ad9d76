"""On a cluster for as long as a command needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import ray

from loaders.ray_engine.session import join_cluster


@contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """Be on the cluster that `join_cluster` finds or starts; leave it, or end it, unless one was on it.

    Raises:
        ConnectionError: no cluster answers at the address.
        ValueError: an address other than that of the cluster this program is on.
    """
    before = ray.is_initialized()
    join_cluster(address)
    try:
        yield
    finally:
        if not before:
            ray.shutdown()


def total_cpus() -> int:
    """CPUs of the nodes that are alive, at least 1."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))
