"""The actors of a job: what they are called, where they run, and how a missing one is started."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import ray
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from loaders.ray_engine.builders import BatchBuilder
from loaders.ray_engine.catalogs import CatalogKeeper
from loaders.ray_engine.readers import READER_OPTIONS, SourceReader
from loaders.ray_engine.routing import Table
from loaders.ray_engine.session import NAMESPACE, data_name, job_name, pickled, this_node
from loaders.reader import Reader
from loaders.shares import Share

RANKS_PER_BUILDER = 8
"""Neighbouring ranks of a node that one builder serves."""
CALLS_AT_ONCE = 64
"""Of a builder: most of them wait for readers."""

# Actors claim no CPU: they must find a place on what is left of a cluster, and how many there are follows
# from the work. They belong to the process that started them and end with it; the next that misses one starts
# it anew.
COMMON: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "namespace": NAMESPACE, "get_if_exists": True}


class Actors:
    """Handles of a job's actors, by name: as long as they are held here, the actors live."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.node = this_node()
        self._handles: dict[str, Any] = {}
        self._lock = threading.Lock()

    @property
    def keeper(self) -> str:
        """Name of the actor that opens data."""
        return f"{self.job}:catalogs"

    @property
    def readers(self) -> str:
        """How the readers' names begin; their number follows."""
        return f"{self.job}:reader:"

    def builder_of(self, share: Share) -> str:
        """Ranks of this node that share the micro-batch find the same one."""
        return f"{self.job}:builder:{self.node[:12]}:{share.first_rank // RANKS_PER_BUILDER}"

    def get(self, name: str) -> Any:
        """The actor of this name, started where there is none."""
        handle = self._handles.get(name)
        if handle is None:
            with self._lock:  # of two handles that start an actor, dropping the first would end it
                handle = self._handles.get(name) or self._handles.setdefault(name, self._started(name))
        return handle

    def builders(self) -> Iterator[Any]:
        """All that there are, those of other ranks too."""
        for one in list_named_actors(all_namespaces=True):
            if one["namespace"] == NAMESPACE and one["name"].startswith(f"{self.job}:builder:"):
                with suppress(ValueError):  # it has just ended
                    yield ray.get_actor(one["name"], namespace=NAMESPACE)

    def end(self, name: str) -> None:
        """End an actor that is not needed any more."""
        self.forget(name)
        with suppress(ValueError):  # it has ended
            ray.kill(ray.get_actor(name, namespace=NAMESPACE))

    def forget(self, name: str) -> None:
        """Look for an actor anew, or start it, when it is next needed: it is dead."""
        self._handles.pop(name, None)

    def _started(self, name: str) -> Any:
        remote: Any = ray.remote  # its stubs know no concurrency groups
        if name == self.keeper:
            return remote(CatalogKeeper).options(name=name, **COMMON).remote()
        if name.startswith(self.readers):
            made = remote(**READER_OPTIONS)(SourceReader)
            return made.options(name=name, scheduling_strategy="SPREAD", **COMMON).remote()
        here = NodeAffinitySchedulingStrategy(self.node, soft=True)
        made = remote(BatchBuilder).options(
            name=name, max_concurrency=CALLS_AT_ONCE, scheduling_strategy=here, **COMMON
        )
        return made.remote()


_ACTORS: weakref.WeakValueDictionary[tuple[str, str], Actors] = weakref.WeakValueDictionary()
"""Of this process: loaders of one job share them, and when the last is gone, so are the actors."""


def actors_of_this_job() -> Actors:
    """What the loaders of this process share."""
    key = job_name(), this_node()
    found = _ACTORS.get(key)
    if found is None:
        found = _ACTORS[key] = Actors(key[0])
    return found


class Plane:
    """What the actors do for one loader.

    Args:
        actors: those of the job.
        reader: what they read and build.
    """

    def __init__(self, actors: Actors, reader: Reader) -> None:
        self.actors = actors
        self.reader = reader
        self.name = data_name(reader)

    def prepare(self, builder: str) -> Any:
        """Tell a builder what to build; gives a reference that is there when it knows."""
        told = pickled(self.reader)  # not kept: data may lie in it
        return self.actors.get(builder).prepare.remote(self.name, told, self.actors.readers)

    def route(self, table: Table) -> None:
        """Tell all builders which readers read which source."""
        for builder in self.actors.builders():
            builder.route.remote(self.name, table)

    def costs(self) -> list[Any]:
        """References to what reading has cost and how long ranks waited lately, one of each builder."""
        return [builder.costs.remote(self.name) for builder in self.actors.builders()]
