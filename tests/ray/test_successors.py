"""Loaders of one program, one after another or at once: they share actors, and end none of another."""

from __future__ import annotations

import gc
import threading
import time

import pytest

pytest.importorskip("ray", reason="ray is not installed")

import ray

from loaders.ray_engine import plane
from loaders.ray_engine.plane import actors_of_this_job
from loaders.ray_engine.session import NAMESPACE, join_cluster
from tests.ray.streams import check_equal, loader_of, mixture


def on_ray(address, rank=0, **changes):
    return loader_of(mixture(), rank, engine="ray", address=address, **changes)


@pytest.fixture(scope="module")
def local():
    """Two epochs of the first rank, in this process."""
    loader = loader_of(mixture(), 0)
    return [list(loader) for _ in range(2)]


@pytest.fixture
def started(monkeypatch):
    """Names of actors in the order in which this process starts them."""
    names = []
    start = plane.Actors._started
    monkeypatch.setattr(plane.Actors, "_started", lambda self, name: names.append(name) or start(self, name))
    return names


def test_a_loader_takes_over_the_actors_of_one_that_is_gone(address, local, started, monkeypatch):
    monkeypatch.setattr(plane, "LINGER_S", 600.0)
    for count in (None, 7, 1, None):  # whole epochs, and some that are left in the middle
        loader = on_ray(address)
        for ours, theirs in zip(local[0][:count], loader, strict=count is None):
            check_equal([ours], [theirs])
        if count is None:
            check_equal(local[1], list(loader))
        del loader
        gc.collect()
    assert len(started) == len(set(started))


def test_a_loader_that_is_made_while_actors_end_starts_new_ones(address, local, monkeypatch):
    monkeypatch.setattr(plane, "LINGER_S", 0.0)
    for _ in range(3):
        stream = iter(on_ray(address))
        check_equal(local[0][:3], [next(stream) for _ in range(3)])
        del stream
        gc.collect()
    check_equal(local[0], list(on_ray(address)))


def test_two_loaders_at_once_share_actors(address, started, monkeypatch):
    monkeypatch.setattr(plane, "LINGER_S", 600.0)
    ranks = [list(loader_of(mixture(), rank)) for rank in range(2)]
    found = [[], []]

    def read(rank):
        found[rank] += list(on_ray(address, rank))

    threads = [threading.Thread(target=read, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(2):
        check_equal(ranks[rank], found[rank])
    assert len(started) == len(set(started))


def test_who_finds_an_actor_dead_late_leaves_its_successor_alone(address):
    join_cluster(address)
    actors = actors_of_this_job()
    name = f"{actors.readers}7"
    first = actors.get(name)
    ray.get(first.process.remote())
    actors.look_again(name)
    assert actors.get(name) is first
    ray.kill(first)
    while actors.get(name) is first:
        actors.look_again(name)
    second = actors.get(name)
    process = ray.get(second.process.remote())
    for _ in range(5):
        actors.look_again(name)
    assert actors.get(name) is second
    del first, second
    gc.collect()
    assert ray.get(ray.get_actor(name, namespace=NAMESPACE).process.remote()) == process
    actors.end(name)


def test_an_actor_that_another_rank_has_started_is_left_to_it(address, monkeypatch):
    monkeypatch.setattr(plane, "LINGER_S", 0.0)
    join_cluster(address)
    actors = actors_of_this_job()
    name = f"{actors.readers}8"
    first = actors.get(name)
    ray.kill(first)
    while name in actors._held.handles:
        actors.look_again(name)
    other = actors._started(name)  # as another rank does it
    assert actors.get(name) == other
    (key,) = (key for key, held in plane._IN_USE.items() if held is actors)
    del actors, first
    gc.collect()
    deadline = time.monotonic() + 600
    while key in plane._LEFT and time.monotonic() < deadline:  # those of other tests may stay for long
        time.sleep(0.05)
    with plane._LOCK:  # all that is ours has been ended
        assert ray.get(other.process.remote())


def test_a_reader_ends_when_no_loader_claims_it_any_more(address):
    join_cluster(address)
    actors = actors_of_this_job()

    class Owner:
        pass

    one, other = Owner(), Owner()
    actors.claim(one, 3)
    actors.claim(other, 2)
    assert actors.unclaimed() == []
    actors.claim(one, 1)
    assert actors.unclaimed() == [f"{actors.readers}2"]
    del other
    gc.collect()
    assert actors.unclaimed() == [f"{actors.readers}{at}" for at in (1, 2)]
