"""A cluster's status in plain values, put together by job: what ``evenload status`` prints. Needs no Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loaders.ray_engine.status import ActorStatus, Status

KINDS = {"reader": "readers", "builder": "builders", "catalogs": "catalogs"}
NOT_BY_ACTOR = ("tokens", "tokens_per_s", "wait_s", "steps")
"""Told by source and by rank instead."""


def summary(status: Status) -> dict[str, Any]:
    """Nodes, object store and jobs.

    Keys: ``address``; ``nodes``: name, alive, cpus, store_bytes; ``store``: used_bytes, total_bytes;
    ``jobs``: job, ``readers``, ``builders``, ``catalogs`` (actors each), ``sources`` (tokens, tokens_per_s by
    name, the busiest first), ``ranks`` (step and wait_s by number). Rates are of the last ten seconds.
    """
    total = status.store_bytes
    jobs = sorted({actor.job for actor in status.actors})
    return {
        "address": status.address,
        "nodes": [asdict(node) for node in status.nodes],
        "store": {"used_bytes": max(total - status.store_free_bytes, 0), "total_bytes": total},
        "jobs": [_job(job, [actor for actor in status.actors if actor.job == job]) for job in jobs],
    }


def _job(job: str, members: Sequence[ActorStatus]) -> dict[str, Any]:
    ordered = sorted(members, key=lambda one: (len(one.name), one.name))
    return {
        "job": job,
        **{plural: [_actor(one) for one in ordered if one.kind == kind] for kind, plural in KINDS.items()},
        "sources": _sources(members),
        "ranks": _ranks(members),
    }


def _actor(one: ActorStatus) -> dict[str, Any]:
    stats = one.reader or one.builder
    told = {} if stats is None else asdict(stats)
    told = {name: value for name, value in told.items() if name not in NOT_BY_ACTOR}
    if "sources" in told:
        told["sources"] = len(told["sources"])
    return {"name": one.name, "answers": one.answers, **told}


def _sources(members: Sequence[ActorStatus]) -> dict[str, dict[str, float]]:
    sums: dict[str, dict[str, float]] = {}
    for reader in (one.reader for one in members if one.reader is not None):
        for name, tokens in reader.tokens.items():
            entry = sums.setdefault(name, {"tokens": 0, "tokens_per_s": 0.0})
            entry["tokens"] += tokens
            entry["tokens_per_s"] += reader.tokens_per_s.get(name, 0.0)
    return dict(sorted(sums.items(), key=lambda item: -item[1]["tokens_per_s"]))


def _ranks(members: Sequence[ActorStatus]) -> dict[str, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for builder in (one.builder for one in members if one.builder is not None):
        for rank, step in builder.steps.items():
            entry = found.setdefault(rank, {"step": step, "wait_s": 0.0})
            entry["step"] = max(entry["step"], step)
            entry["wait_s"] += builder.wait_s.get(rank, 0.0)
    return {str(rank): found[rank] for rank in sorted(found)}
