"""The actors of a job: what they are called, where they run, and how a missing one is started."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from loaders.batches.reader import Reader
from loaders.batches.shares import Share
from loaders.ray_engine.builders import BatchBuilder
from loaders.ray_engine.catalogs import CatalogKeeper
from loaders.ray_engine.readers import READER_OPTIONS, SourceReader
from loaders.ray_engine.routing import Table
from loaders.ray_engine.session import NAMESPACE, data_name, job_name, pickled, this_node

RANKS_PER_BUILDER = 8
"""Neighbouring ranks of a node that one builder serves."""
CALLS_AT_ONCE = 64
"""Of a builder: most of them wait for readers."""
LINGER_S = 10.0
"""Actors stay for so long when the last loader is gone: the next one need not start them again."""
ENDING_S = 5.0
"""A name is free again well within it once its actor has been told to end."""

logger = logging.getLogger(__name__)

# Actors claim no CPU: they must find a place on what is left of a cluster, and how many there are follows
# from the work. They belong to the process that started them and end with it; the next that misses one starts
# it anew.
# The head would keep an event of each of the last hundred thousand calls, 125 MB; the calls have spans here.
COMMON: dict[str, Any] = {
    "num_cpus": 0,
    "max_restarts": -1,
    "namespace": NAMESPACE,
    "enable_task_events": False,
}


@dataclass(slots=True, eq=False)
class Held:
    """Handles by name, and the names of the actors that this process has started, which end with them."""

    handles: dict[str, Any] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)


class Actors:
    """Handles of a job's actors, by name: as long as they are held here, the actors live."""

    def __init__(self, job: str, node: str, held: Held) -> None:
        self.job = job
        self.node = node
        self._held = held
        self._claims: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._most_readers = 1
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
        handle = self._held.handles.get(name)
        if handle is None:
            with self._lock:  # of two handles that start an actor, dropping the first would end it
                handle = self._held.handles.get(name) or self._found_or_started(name)
        return handle

    def builders(self) -> Iterator[Any]:
        """All that there are, those of other ranks too."""
        for one in list_named_actors(all_namespaces=True):
            if one["namespace"] == NAMESPACE and one["name"].startswith(f"{self.job}:builder:"):
                with suppress(ValueError):  # it has just ended
                    yield ray.get_actor(one["name"], namespace=NAMESPACE)

    def claim(self, owner: object, readers: int) -> None:
        """Let the first ``readers`` readers live for as long as ``owner`` does, or claims another number."""
        with self._lock:
            self._claims[owner] = readers
            self._most_readers = max(self._most_readers, readers)

    def unclaimed(self) -> list[str]:
        """Names of readers that no loader of this process claims any more."""
        with self._lock:
            claimed = max(self._claims.values(), default=1)
            return [f"{self.readers}{at}" for at in range(claimed, self._most_readers)]

    def end(self, name: str) -> None:
        """End an actor that is not needed any more."""
        with self._lock:
            self._held.handles.pop(name, None)
            self._held.own.discard(name)
        with suppress(ValueError):  # it has ended
            ray.kill(ray.get_actor(name, namespace=NAMESPACE))

    def look_again(self, name: str) -> None:
        """An actor seems to be dead: take what has its name now; `get` starts it where that is nothing.

        Of several that find it dead, the first starts it anew. The others must not let that one go: a handle
        that has started an actor ends it when it is dropped.
        """
        with self._lock:
            handles = self._held.handles
            try:
                now = ray.get_actor(name, namespace=NAMESPACE)
            except ValueError:
                handles.pop(name, None)
                self._held.own.discard(name)
                return
            held = handles.get(name)
            if held is None or held._actor_id != now._actor_id:
                handles[name] = now
                self._held.own.discard(name)

    def adopt(self, held: Held) -> None:
        """Hold what a predecessor held."""
        with self._lock:
            for name, handle in held.handles.items():
                now = self._held.handles.get(name)
                if now is None or (name in held.own and now._actor_id == handle._actor_id):
                    self._held.handles[name] = handle
                    self._held.own |= {name} & held.own

    def _found_or_started(self, name: str) -> Any:
        give_up = time.monotonic() + ENDING_S
        while True:
            try:
                handle = ray.get_actor(name, namespace=NAMESPACE)
                break
            except ValueError:  # there is none
                pass
            try:
                handle = self._started(name)
                self._held.own.add(name)
                break
            except ValueError:  # another rank has started it meanwhile
                if time.monotonic() > give_up:
                    raise
        self._held.handles[name] = handle
        return handle

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


Key = tuple[str, str]
"""Job and node."""

_IN_USE: weakref.WeakValueDictionary[Key, Actors] = weakref.WeakValueDictionary()
"""Of this process: loaders of one job share them."""
_LEFT: dict[Key, Held] = {}
"""Whose last loader is gone. The next one within `LINGER_S` takes them over."""
_LOCK = threading.Lock()
"""Held while actors end, too: a loader that is made meanwhile must not find them under their names."""


def actors_of_this_job() -> Actors:
    """What the loaders of this process share."""
    key = job_name(), this_node()
    with _LOCK:
        found = _IN_USE.get(key)
        if found is None:
            held = _LEFT.pop(key, None) or Held()
            found = _IN_USE[key] = Actors(*key, held)
            weakref.finalize(found, _leave, key, held).atexit = False
    return found


def _leave(key: Key, held: Held) -> None:
    """The last loader is gone. It may go at any moment, so nothing is waited for here."""
    left = Held(held.handles, held.own)  # another object each time, which tells one departure from the next
    timer = threading.Timer(LINGER_S, _end, (key, left))
    timer.daemon = True
    _LEFT[key] = left
    with suppress(RuntimeError):  # the program is ending, and its actors with it
        timer.start()


def _end(key: Key, left: Held) -> None:
    if not threading.main_thread().is_alive():
        return  # the program is only there for other ranks, which use the actors
    with _LOCK:
        if _LEFT.get(key) is not left:
            return
        del _LEFT[key]
        successor = _IN_USE.get(key)
        if successor is not None:
            successor.adopt(left)
        elif ray.is_initialized():
            try:
                _end_all(key[1], left)
            except Exception:  # Ray ends them with the last handle or the program
                logger.info("actors were not ended", exc_info=True)


def _end_all(node: str, left: Held) -> None:
    """End what this process has started, and come back when the names are free."""
    if this_node() != node:
        return
    for name in left.own:
        with suppress(ValueError):
            if ray.get_actor(name, namespace=NAMESPACE)._actor_id == left.handles[name]._actor_id:
                ray.kill(left.handles[name])
    give_up = time.monotonic() + ENDING_S
    for name in left.own:
        while time.monotonic() < give_up:
            try:
                now = ray.get_actor(name, namespace=NAMESPACE)
            except ValueError:
                break
            if now._actor_id != left.handles[name]._actor_id:
                break
            time.sleep(0.05)


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
