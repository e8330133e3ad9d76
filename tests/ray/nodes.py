"""A Ray cluster of several small nodes on loopback, each with processes of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STORE_BYTES = 200 << 20


def patient_cluster(**options: Any) -> Any:
    """A `Cluster` whose nodes may take minutes to start; Ray's own limit is half a minute."""
    from ray.cluster_utils import Cluster

    class Patient(Cluster):  # type: ignore[misc]
        def _wait_for_node(self, node: Any, timeout: float = 600.0) -> None:
            super()._wait_for_node(node, timeout)

    return Patient(**options)


@contextmanager
def cluster_of(nodes: int, cpus: int = 1) -> Iterator[Any]:
    """A `Cluster`; its first node is the head. Nodes may be removed meanwhile."""
    import ray

    sizes = {"num_cpus": cpus, "object_store_memory": STORE_BYTES}
    cluster = patient_cluster(initialize_head=True, head_node_args={**sizes, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**sizes)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextmanager
def driver(cluster: Any) -> Iterator[None]:
    """Be on the cluster, quietly."""
    import ray

    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()
