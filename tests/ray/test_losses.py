"""Whatever is lost on the way, the stream goes on as if nothing had been."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress

import pytest

pytest.importorskip("ray", reason="ray is not installed")

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from benchmarks._processes import own_process
from loaders.faults import SampleError
from loaders.ray_engine import readers
from loaders.ray_engine.session import NAMESPACE
from tests.ray.streams import Brittle, check_equal, lengths, loader_of, mixture


def on_ray(address, dataset, rank, ranks=2, **changes):
    return loader_of(dataset, rank, ranks, engine="ray", address=address, **changes)


def actor_names(*kinds):
    names = [one["name"] for one in list_named_actors(all_namespaces=True) if one["namespace"] == NAMESPACE]
    return sorted(name for name in names if name.split(":")[1] in kinds)


def end_one(chance):
    """End an actor in one of three ways; gives its process, or nothing where the chosen one does not live."""
    names = actor_names("reader", "builder", "catalogs")
    if not names:
        return None
    try:
        actor = ray.get_actor(chance.choice(names), namespace=NAMESPACE)
        process = ray.get(actor.__ray_call__.remote(own_process), timeout=60)
    except (RayActorError, GetTimeoutError, ValueError):
        return None
    how = chance.choice(["process", "restart", "for good"])
    if how == "process":
        os.kill(process, signal.SIGKILL)
    else:
        ray.kill(actor, no_restart=how == "for good")
    return process


KILLS = 20


def test_twenty_random_kills_change_nothing(address):
    whole = [list(loader_of(mixture(), rank)) for rank in range(2)]
    chance = random.Random(5)
    loaders = [on_ray(address, mixture(), rank) for rank in range(2)]
    streams = [iter(loader) for loader in loaders]
    given = [[next(stream)] for stream in streams]
    killed, due = set(), 0
    moments = set(chance.sample(range(1, len(whole[0])), KILLS))
    for at in range(1, max(map(len, whole))):
        due += at in moments
        if due and (process := end_one(chance)) is not None:
            killed.add(process)
            due -= 1
        for rank in range(2):
            if at < len(whole[rank]):
                given[rank].append(next(streams[rank]))
    assert len(killed) > 2  # on a busy machine many that are chosen are just being started again
    for rank in range(2):
        check_equal(whole[rank], given[rank])
        with pytest.raises(StopIteration):
            next(streams[rank])


def test_a_row_that_ends_its_reader_is_skipped_or_named(address):
    source = Brittle(lengths(40), deadly=[17])
    loader = on_ray(address, source, 0, 1, cp_degrees=(1,), shuffle=False)
    batches = list(loader)
    [fault] = [fault for batch in batches for fault in batch.faults]
    assert (fault.row, fault.error) == (17, "ReaderDied")
    assert loader.metrics()["skipped"] == 1
    local = loader_of(Brittle(lengths(40), bad=[17]), 0, 1, cp_degrees=(1,), shuffle=False)
    for ours, theirs in zip(batches, list(local), strict=True):
        assert ours["labels"].tolist() == theirs["labels"].tolist()
    strict = {"on_error": "raise", "max_errors": 0.01, "cp_degrees": (1,), "shuffle": False}
    with pytest.raises(SampleError, match="brittle, row 17, stage read: the process of its reader ended"):
        list(on_ray(address, source, 0, 1, **strict))


def test_a_lost_node_changes_nothing(cluster, address):
    extra = cluster.add_node(num_cpus=1)
    whole = list(loader_of(mixture(), 0))
    loader = on_ray(address, mixture(), 0)
    stream = iter(loader)
    given = [next(stream) for _ in range(3)]
    nodes = {one["NodeID"]: one["Alive"] for one in ray.nodes()}
    for name in actor_names("reader"):  # move the readers to the node that is going to be lost
        moved = started_on(extra.node_id, name)
        ray.get(moved.process.remote())
    given += [next(stream) for _ in range(8)]
    assert nodes[extra.node_id]
    cluster.remove_node(extra, allow_graceful=False)
    given += list(stream)
    check_equal(whole, given)


@pytest.mark.parametrize(
    "error",
    ["RayActorError", "ActorDiedError", "ActorUnavailableError", "ActorUnschedulableError", "NodeDiedError"],
)
def test_whatever_ray_says_of_an_actor_that_is_gone_is_a_loss(error):
    from loaders.ray_engine import asking, engine

    kind = getattr(ray.exceptions, error)
    assert issubclass(kind, asking.LOST)
    assert issubclass(kind, engine.LOST)


def started_on(node, name):
    """A reader of this name on a node, in place of the one that there is."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    made = ray.remote(**readers.READER_OPTIONS)(readers.SourceReader).options(
        name=name, namespace=NAMESPACE, num_cpus=0, max_restarts=-1, scheduling_strategy=there
    )
    for _ in range(6000):
        with suppress(ValueError):  # it has ended
            ray.kill(ray.get_actor(name, namespace=NAMESPACE))
        try:
            return made.remote()
        except ValueError:  # its end takes a moment, or the loader was quicker to start it anew
            time.sleep(0.1)
    pytest.fail(f"{name} is still there")
