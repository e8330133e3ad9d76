"""What the data planes on a cluster do at the moment, and a timeline of what they did lately."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util import list_named_actors

from loaders.ray_engine.builders import BuilderStats
from loaders.ray_engine.raised import GONE
from loaders.ray_engine.readers import ReaderStats
from loaders.ray_engine.session import NAMESPACE, clusters_here, join_cluster
from loaders.ray_engine.tracks import trace_events

ANSWER_S = 5.0
"""Actors that do not answer within it are told of as such."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorStatus:
    """One actor of a data plane."""

    job: str
    kind: str
    """``reader``, ``builder`` or ``catalogs``."""
    name: str
    """The rest of its name: a reader's number, a builder's node and group of ranks."""
    answers: bool
    reader: ReaderStats | None = None
    builder: BuilderStats | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeStatus:
    """One node of the cluster."""

    name: str
    alive: bool
    cpus: float
    store_bytes: int
    """Size of its object store."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """All data planes of a cluster."""

    address: str
    nodes: Sequence[NodeStatus]
    actors: Sequence[ActorStatus]
    store_free_bytes: int
    """Of the object stores of all nodes together."""

    @property
    def readers(self) -> list[ActorStatus]:
        """Actors that read."""
        return [actor for actor in self.actors if actor.kind == "reader"]

    @property
    def builders(self) -> list[ActorStatus]:
        """Actors that build micro-batches."""
        return [actor for actor in self.actors if actor.kind == "builder"]

    @property
    def store_bytes(self) -> int:
        """Object stores of all nodes that are alive."""
        return sum(node.store_bytes for node in self.nodes if node.alive)

    @property
    def tokens_per_s(self) -> Mapping[str, float]:
        """By source, all readers together, over the last seconds."""
        total: dict[str, float] = {}
        for actor in self.readers:
            for name, rate in (actor.reader.tokens_per_s if actor.reader else {}).items():
                total[name] = total.get(name, 0.0) + rate
        return total

    @property
    def waiting(self) -> int:
        """Micro-batches that are asked for and not built."""
        return sum(actor.builder.waiting for actor in self.builders if actor.builder)

    @property
    def wait_s(self) -> Mapping[int, float]:
        """Seconds that each rank has waited for batches; of several jobs together."""
        total: dict[int, float] = {}
        for actor in self.builders:
            for rank, seconds in (actor.builder.wait_s if actor.builder else {}).items():
                total[rank] = total.get(rank, 0.0) + seconds
        return total


def status(address: str | None = None) -> Status:
    """What runs on the cluster that this program is on, or that at ``address`` or ``RAY_ADDRESS``.

    Raises:
        ConnectionError: there is none, or no address and several of them on this machine.
    """
    _on_cluster(address)
    asked = [(name, _ask(name, "stats")) for name in _names()]
    resources = ray.available_resources()
    nodes = [
        NodeStatus(
            name=str(node["NodeName"]),
            alive=bool(node["Alive"]),
            cpus=float(node["Resources"].get("CPU", 0.0)),
            store_bytes=int(node["Resources"].get("object_store_memory", 0)),
        )
        for node in ray.nodes()
    ]
    return Status(
        address=ray.get_runtime_context().gcs_address,
        nodes=nodes,
        actors=[_status_of(name, _answer(reference)) for name, reference in asked],
        store_free_bytes=int(resources.get("object_store_memory", 0)),
    )


def write_timeline(path: str | os.PathLike[str], address: str | None = None) -> int:
    """The latest reads, builds and waits of all data planes, for https://ui.perfetto.dev; gives their number.

    One track for each reader and builder, and one for the waits of each rank.
    """
    _on_cluster(address)
    asked = [(name, _ask(name, "spans")) for name in _names()]
    found = {name: spans for name, reference in asked if (spans := _answer(reference))}
    with open(path, "w") as file:
        json.dump({"traceEvents": trace_events(found), "displayTimeUnit": "ms"}, file)
    return sum(len(spans) for spans in found.values())


def _on_cluster(address: str | None) -> None:
    if address is None and not ray.is_initialized() and not os.environ.get("RAY_ADDRESS"):
        here = clusters_here()
        if len(here) > 1:
            raise ConnectionError(
                f"{len(here)} Ray clusters run on this machine: {', '.join(here)}. Say which one with an "
                "address or RAY_ADDRESS; a loader that started one itself has it for as long as it trains."
            )
        address = "auto"  # the one that runs on this machine; none is started to be looked at
    join_cluster(address)


def _names() -> list[str]:
    named = list_named_actors(all_namespaces=True)
    return sorted(one["name"] for one in named if one["namespace"] == NAMESPACE)


def _ask(name: str, method: str) -> Any:
    """Reference to an answer; ``None`` where there is no such actor, or it tells nothing of the kind."""
    with suppress(ValueError):
        actor = ray.get_actor(name, namespace=NAMESPACE)
        if hasattr(actor, method):
            return getattr(actor, method).remote()
    return None


def _answer(reference: Any) -> Any:
    if reference is not None:
        with suppress(*GONE, GetTimeoutError):
            return ray.get(reference, timeout=ANSWER_S)
    return None


def _status_of(name: str, stats: Any) -> ActorStatus:
    job, kind, *rest = name.split(":")
    return ActorStatus(
        job=job,
        kind=kind,
        name=":".join(rest),
        answers=stats is not None,
        reader=stats if isinstance(stats, ReaderStats) else None,
        builder=stats if isinstance(stats, BuilderStats) else None,
    )
