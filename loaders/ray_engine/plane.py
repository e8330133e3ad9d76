"""The actors of one loader: what they are called, where they run, and how a missing one is started."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ray
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from loaders.ray_engine.builders import BatchBuilder
from loaders.ray_engine.readers import READER_OPTIONS, SourceReader
from loaders.ray_engine.session import NAMESPACE, data_name, pickled, this_node
from loaders.reader import Reader
from loaders.shares import Share

RANKS_PER_BUILDER = 8
"""Neighbouring ranks of a node that one builder serves."""
CALLS_AT_ONCE = 64
"""Of a builder: most of them wait for readers."""

# Actors claim no CPU: they must find a place on what is left of a cluster, and how many there are follows
# from the work. They belong to the process that started them and end with it; the next that misses one starts
# it anew.
COMMON = {"num_cpus": 0, "max_restarts": -1, "namespace": NAMESPACE, "get_if_exists": True}


class Plane:
    """Handles of the actors of one loader, by name.

    Args:
        job: name of the job.
        reader: what the actors read and build.
    """

    def __init__(self, job: str, reader: Reader) -> None:
        self.reader = reader
        self.node = this_node()
        self.blob = pickled(reader)
        self.prefix = f"{job}:{data_name(self.blob)}"
        self._handles: dict[str, Any] = {}

    def builder_name(self, share: Share) -> str:
        """Ranks of this node that share the micro-batch find the same one."""
        return f"{self.prefix}:builder:{self.node[:12]}:{share.first_rank // RANKS_PER_BUILDER}"

    def reader_name(self, number: int) -> str:
        """The ``number``-th reader."""
        return f"{self.readers}{number}"

    @property
    def readers(self) -> str:
        """How the readers' names begin."""
        return f"{self.prefix}:reader:"

    def builder(self, name: str) -> Any:
        """A builder on this node."""
        here = NodeAffinitySchedulingStrategy(self.node, soft=True)
        options = COMMON | {"max_concurrency": CALLS_AT_ONCE, "scheduling_strategy": here}
        return self._found(name, lambda: ray.remote(BatchBuilder).options(name=name, **options).remote())

    def source_reader(self, name: str) -> Any:
        """A reader, on a node that has few of them."""
        options = COMMON | {"scheduling_strategy": "SPREAD"}
        remote: Any = ray.remote  # its stubs know no concurrency groups
        made = remote(**READER_OPTIONS)(SourceReader).options(name=name, **options)
        how = {"capacity": self.reader.capacity, "skip_faults": self.reader.skip_faults}
        return self._found(name, lambda: made.remote(**how))

    def prepare(self, builder: str) -> None:
        """Tell a builder what to build."""
        self.builder(builder).prepare.remote(self.blob, self.readers)

    def builders(self) -> Iterator[Any]:
        """All that there are, those of other ranks too."""
        for one in list_named_actors(all_namespaces=True):
            if one["namespace"] == NAMESPACE and one["name"].startswith(f"{self.prefix}:builder:"):
                try:
                    yield ray.get_actor(one["name"], namespace=NAMESPACE)
                except ValueError:
                    continue  # it has just ended

    def end(self, name: str) -> None:
        """End an actor that is not needed any more."""
        self._handles.pop(name, None)
        try:
            ray.kill(ray.get_actor(name, namespace=NAMESPACE))
        except ValueError:
            return  # it has ended

    def forget(self, name: str) -> None:
        """Look for an actor anew, or start it, when it is next needed: it is dead."""
        self._handles.pop(name, None)

    def _found(self, name: str, start: Any) -> Any:
        if name not in self._handles:
            self._handles[name] = start()
        return self._handles[name]
