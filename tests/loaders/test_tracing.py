"""Which sample goes where, answered beforehand and found to be so."""

from __future__ import annotations

import numpy as np
import pytest

from balancer import CostModel
from loaders import DataLoader, Mixture
from tests.loaders.arrays import ArraySource, epoch_of, on_all_ranks

COST = CostModel(linear=1e-6, quadratic=1e-8, fixed=1e-5)


@pytest.mark.parametrize("steps", [{"batch_size": 3}, {"step_tokens": 150}])
def test_every_piece_is_computed_where_it_was_said_to_be(steps):
    sources = {"a": ArraySource(np.random.default_rng(0).integers(1, 90, 20)), "b": ArraySource([150, 0, 7])}
    mixture = Mixture(sources, stop="all_once")
    arguments = {"shuffle": True, "max_tokens": 64, "cp_degrees": (1, 2), "cost": COST, "oversize": "split"}
    loaders = on_all_ranks(mixture, 2, **steps, **arguments)
    found = {}
    for rank, loader in enumerate(loaders):
        for number, step in enumerate(epoch_of(loader)):
            for batch in step:
                for (source, row), start in zip(batch.sample_ids, batch.starts, strict=True):
                    place = found.setdefault((int(source), int(row), int(start)), (number, batch.slot, []))
                    place[2].append(rank)
    for source, name in enumerate(sources):
        for row in range(len(sources[name])):
            told = loaders[0].where(row, source=name, epoch=0)
            seen = {start: place for (s, r, start), place in found.items() if (s, r) == (source, row)}
            assert {one.start: (one.step, one.slot, list(one.ranks)) for one in told} == seen


def test_a_step_is_shown_without_being_run():
    loader = DataLoader(ArraySource(range(1, 31)), batch_size=4, shuffle=True, max_tokens=64)
    whole = list(loader.batch_sampler)
    view = loader.step(5)
    assert view.sample_ids[:, 1].tolist() == whole[5]
    assert len(view.plan.micro_batches) >= 1
    with pytest.raises(IndexError, match=r"epoch 0 has steps 0\.\.7, asked for 8"):
        loader.step(8)
    assert loader.where(3, epoch=1)[0].step != loader.where(3)[0].step or loader.where(
        4, epoch=1
    ) != loader.where(4)


def test_rows_that_never_come_are_nowhere():
    loader = DataLoader(ArraySource([3, 0, 99]), max_tokens=64, oversize="drop")
    assert [len(loader.where(row)) for row in range(3)] == [1, 0, 0]
    with pytest.raises(ValueError, match="source must be one of arrays, got 'nothing'"):
        loader.where(0, source="nothing")


def test_in_order_false_is_told_to_have_no_effect(caplog):
    DataLoader(ArraySource([3]), max_tokens=8, num_workers=1, in_order=False)
    assert "in_order=False has no effect with max_tokens" in caplog.text
