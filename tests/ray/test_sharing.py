"""What there is once, and how many readers there are."""

from __future__ import annotations

import gc
import os
import time

import numpy as np
import pytest

pytest.importorskip("ray", reason="ray is not installed")

import ray

from loaders import Mixture
from loaders.ray_engine.status import status
from tests.loaders.arrays import ArraySource
from tests.ray.streams import check_equal, digest, lengths, loader_of, mixture


def on_ray(address, dataset, rank, ranks=2, **changes):
    return loader_of(dataset, rank, ranks, engine="ray", address=address, **changes)


def batches_built():
    return sum(actor.builder.batches for actor in status().builders)


def test_processes_of_one_data_rank_share_one_copy_of_each_batch(address, monkeypatch):
    monkeypatch.setattr("loaders.building.has_peers", lambda topology: True)
    loaders = [on_ray(address, mixture(), 0) for _ in range(2)]
    before = batches_built()
    pairs = list(zip(*loaders, strict=True))
    for pair in pairs:
        check_equal(pair[:1], pair[1:])
    assert batches_built() - before == len(pairs)


def test_ranks_of_a_context_parallel_group_share_one_copy(address):
    loaders = [on_ray(address, mixture(), rank, cp_degrees=(2,)) for rank in range(2)]
    before = batches_built()
    pairs = list(zip(*loaders, strict=True))
    assert {batch.cp_degree for pair in pairs for batch in pair} == {2}
    assert batches_built() - before == len(pairs)


def test_lengths_lie_in_memory_that_ranks_share(address):
    source = ArraySource(np.full(200_000, 5))
    loader = on_ray(address, source, 0, shuffle=False)
    [catalog] = loader._required().planning.steps.catalogs
    assert catalog.lengths.nbytes == 1_600_000
    assert not catalog.lengths.flags.writeable  # a view of the object store
    np.testing.assert_array_equal(catalog.lengths, source.row_lengths)


def test_loaders_share_actors_and_leave_none_behind(address):
    first, second = on_ray(address, mixture(), 0), on_ray(address, ArraySource(lengths(30)), 0)
    next(iter(first)), next(iter(second))
    kinds = [actor.kind for actor in status().actors]
    assert set(kinds) == {"builder", "catalogs", "reader"}
    assert kinds.count("builder") == kinds.count("catalogs") == 1
    del first, second
    gc.collect()
    give_up = time.monotonic() + 600
    while status().actors and time.monotonic() < give_up:
        time.sleep(0.2)
    assert status().actors == []


class Training:
    """A worker as Ray Train has them: an actor of a program that is on the cluster already."""

    def batches(self, rank):
        return [digest(batch) for batch in loader_of(mixture(), rank, 2, engine="ray")]


def test_ranks_that_are_actors_find_the_same_data_plane(address):
    on_ray(address, mixture(), 0)  # be on the cluster
    workers = [ray.remote(Training).options(num_cpus=0).remote() for _ in range(2)]
    found = ray.get([worker.batches.remote(rank) for rank, worker in enumerate(workers)])
    for rank in range(2):
        assert found[rank] == [digest(batch) for batch in loader_of(mixture(), rank, 2)]


class Slow(ArraySource):
    """Takes 30 ms a row, except where it was made."""

    def __init__(self, lengths):
        super().__init__(lengths, name="slow")
        self.home = os.getpid()

    def read(self, rows):
        if os.getpid() != self.home:
            time.sleep(0.03 * len(rows))
        return super().read(rows)


def test_a_slow_source_is_given_readers_of_its_own(address, monkeypatch):
    monkeypatch.setattr("loaders.ray_engine.scaling.LOOK_S", 0.0)
    monkeypatch.setattr("loaders.ray_engine.profile.Pace.compute_s", 1e-3)  # on whatever machine
    sources = {"slow": Slow(lengths(300)), "light": ArraySource(lengths(300, 1), name="light")}
    data = Mixture(sources, {"slow": 0.5, "light": 0.5})
    loader = on_ray(address, data, 0, 1, cp_degrees=(1,))
    tables, batches = set(), []
    for batch in loader:
        batches.append(batch)
        scaler = loader._required().reading.scaler
        if scaler._looking is not None:
            scaler._looking.join()
        tables.add(scaler.table)
    assert ((0,), (0,)) in tables
    slow, light = max(tables, key=lambda table: len({*table[0], *table[1]}))  # how many is a matter of pace
    assert not set(slow) & set(light)
    check_equal(list(loader_of(data, 0, 1, cp_degrees=(1,))), batches)
