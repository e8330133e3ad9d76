"""What the loaders on a cluster do: their actors asked one by one, put together by loader."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util import list_named_actors

from loaders.ray_engine.builders import BuilderStats
from loaders.ray_engine.readers import ReaderStats
from loaders.ray_engine.session import NAMESPACE

ANSWER_S = 5.0
"""An actor that does not answer within this time is shown as not answering."""
ROLES = ("reader", "builder", "catalog")


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorState:
    """One actor. ``stats`` is ``None`` where it does not answer, or tells nothing of itself."""

    job: str
    data: str
    role: str
    number: str
    """Among those of its role; a builder's begins with its node."""
    node: str | None
    """``None``: it does not answer."""
    process: int | None
    stats: ReaderStats | BuilderStats | None


def status() -> dict[str, Any]:
    """Nodes, object store and loaders of the cluster that this program is on, in plain values.

    Keys: ``address``; ``nodes``: id, host, alive, cpus; ``store``: used_bytes, total_bytes; ``loaders``: job,
    data, ``readers``, ``builders``, ``catalogs`` (by actor), ``sources`` (tokens and tokens_per_s by name),
    ``ranks`` (step and wait_s by number). Rates are of the last ten seconds.

    Cost: one call to each actor, at once; at most `ANSWER_S`.
    """
    total, free = ray.cluster_resources(), ray.available_resources()
    store = "object_store_memory"
    return {
        "address": ray.get_runtime_context().gcs_address,
        "nodes": [_node(node) for node in ray.nodes()],
        "store": {
            "used_bytes": int(total.get(store, 0) - free.get(store, 0)),
            "total_bytes": int(total.get(store, 0)),
        },
        "loaders": by_loader(actors()),
    }


def _node(node: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": node["NodeID"][:12],
        "host": node["NodeManagerHostname"],
        "alive": bool(node["Alive"]),
        "cpus": node["Resources"].get("CPU", 0),
    }


def actors() -> list[ActorState]:
    """All actors of loaders, asked how they are."""
    asked = []
    for one in list_named_actors(all_namespaces=True):
        parts = one["name"].split(":")
        role = next((part for part in parts if part in ROLES), None)
        if one["namespace"] != NAMESPACE or role is None:
            continue
        at = parts.index(role)
        names = (parts[0], ":".join(parts[1:at]), role, ":".join(parts[at + 1 :]))
        try:
            handle = ray.get_actor(one["name"], namespace=NAMESPACE)
        except ValueError:  # it has just ended
            continue
        asked.append((names, _asked(handle, role)))
    ray.wait(
        [reference for _, reference in asked], num_returns=len(asked), timeout=ANSWER_S
    ) if asked else None
    return [_state(names, reference) for names, reference in asked]


def _asked(handle: Any, role: str) -> Any:
    call = handle.__ray_call__
    if role == "reader":  # beside what it reads
        call = call.options(concurrency_group="telling")
    return call.remote(_tell)


def _tell(actor: Any) -> tuple[str, int, ReaderStats | BuilderStats | None]:
    """Runs in an actor's process."""
    node = str(ray.get_runtime_context().get_node_id())
    return node[:12], os.getpid(), actor.stats() if hasattr(actor, "stats") else None


def _state(names: tuple[str, str, str, str], reference: Any) -> ActorState:
    job, data, role, number = names
    try:
        node, process, stats = ray.get(reference, timeout=0)
    except (GetTimeoutError, RayActorError):
        node = process = stats = None
    return ActorState(job=job, data=data, role=role, number=number, node=node, process=process, stats=stats)


def by_loader(found: Iterable[ActorState]) -> list[dict[str, Any]]:
    """Actors put together by job and data, with sums over sources and ranks. Pure."""
    loaders: dict[tuple[str, str], list[ActorState]] = defaultdict(list)
    for one in sorted(found, key=lambda one: (one.job, one.data, one.role, len(one.number), one.number)):
        loaders[one.job, one.data].append(one)
    return [
        {
            "job": job,
            "data": data,
            **{f"{role}s": [_plain(one) for one in members if one.role == role] for role in ROLES},
            "sources": _sources(members),
            "ranks": _ranks(members),
        }
        for (job, data), members in loaders.items()
    ]


def _plain(one: ActorState) -> dict[str, Any]:
    told = {} if one.stats is None else asdict(one.stats)
    for name in ("tokens", "tokens_per_s", "wait_s", "steps"):  # told by source and by rank
        told.pop(name, None)
    if "sources" in told:
        told["sources"] = len(told["sources"])
    answers = one.node is not None
    return {"number": one.number, "answers": answers, "node": one.node, "process": one.process, **told}


def _sources(members: Sequence[ActorState]) -> dict[str, dict[str, float]]:
    sums: dict[str, dict[str, float]] = {}
    for one in members:
        if isinstance(one.stats, ReaderStats):
            for name, tokens in one.stats.tokens.items():
                entry = sums.setdefault(name, {"tokens": 0, "tokens_per_s": 0.0})
                entry["tokens"] += tokens
                entry["tokens_per_s"] += one.stats.tokens_per_s.get(name, 0.0)
    return dict(sorted(sums.items(), key=lambda item: -item[1]["tokens_per_s"]))


def _ranks(members: Sequence[ActorState]) -> dict[str, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for one in members:
        if isinstance(one.stats, BuilderStats):
            for rank, step in one.stats.steps.items():
                entry = found.setdefault(rank, {"step": step, "wait_s": 0.0})
                entry["step"] = max(entry["step"], step)
                entry["wait_s"] += one.stats.wait_s.get(rank, 0.0)
    return {str(rank): found[rank] for rank in sorted(found)}
