"""The way onto a Ray cluster: one that runs, or one of this machine's CPUs for as long as it is needed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray


@contextmanager
def connected(address: str | None = None, *, cpus: int | None = None) -> Iterator[None]:
    """Be on the cluster at ``address`` (else ``RAY_ADDRESS``); without either, start one on this machine.

    Inside of a program that is on a cluster already, that one is used, and kept. ``cpus`` is the size of a
    cluster that is started here.

    Raises:
        ConnectionError: no cluster answers at the address.
        ValueError: an address other than that of the cluster this program is on.
    """
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", here):
            raise ValueError(
                f"this program is on the Ray cluster {here} already, so it cannot be on {address} too. "
                "Leave the address out, or call ray.shutdown() first."
            )
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    sizes: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **sizes)
    except (ConnectionError, RuntimeError) as error:
        raise ConnectionError(
            f"no Ray cluster answers at {address} ({type(error).__name__}: {error}). Start one with "
            "`ray start --head`, or leave the address out to use this machine alone."
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def total_cpus() -> int:
    """CPUs of the nodes that are alive, at least 1."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))
