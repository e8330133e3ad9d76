"""Batches on a device: one copy ahead, and a state that does not run ahead with it."""

from __future__ import annotations

import pytest
import torch

from loaders import DataLoader
from loaders.batches.device import Plain, checked_device, mover_for, one_ahead
from tests.loaders.arrays import ArraySource


class Recorder:
    """Writes down when copies begin and end."""

    def __init__(self):
        self.events = []

    def begin(self, batch):
        self.events.append(f"begin {batch}")
        return batch

    def end(self, begun):
        self.events.append(f"end {begun}")
        return begun


def test_the_next_copy_has_begun_when_a_batch_is_given_out():
    recorder = Recorder()
    for batch in one_ahead(iter("abc"), recorder):
        recorder.events.append(f"use {batch}")
    assert recorder.events == [
        "begin a",
        "begin b",
        "end a",
        "use a",
        "begin c",
        "end b",
        "use b",
        "end c",
        "use c",
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_every_batch_comes_once_and_in_order(count):
    assert list(one_ahead(iter(range(count)), Recorder())) == list(range(count))


def test_batches_come_on_the_device_with_their_attributes():
    loader = DataLoader(ArraySource([4, 5, 6]), batch_size=2, max_tokens=8, device="meta")
    batches = list(loader)
    assert {value.device.type for batch in batches for value in batch.values() if torch.is_tensor(value)} == {
        "meta"
    }
    assert [batch.step for batch in batches] == [0, 0, 1]
    assert batches[-1].last_in_step


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_device_changes_neither_batches_nor_the_state(num_workers):
    def loader(**more):
        return DataLoader(
            ArraySource(list(range(1, 20))),
            batch_size=3,
            max_tokens=32,
            shuffle=True,
            num_workers=num_workers,
            **more,
        )

    plain, moved = loader(), loader(device="cpu")
    for one, other in zip(plain, moved, strict=True):
        assert torch.equal(one["input_ids"], other["input_ids"])
        assert plain.state_dict() == moved.state_dict()
        assert plain.plan.digest() == moved.plan.digest()


def test_a_resume_behind_prefetched_batches_repeats_and_loses_none():
    def loader():
        return DataLoader(ArraySource(list(range(1, 20))), batch_size=2, max_tokens=64, device="cpu")

    whole = [batch.sample_ids.tolist() for batch in loader()]
    first = loader()
    iterator = iter(first)
    taken = [next(iterator).sample_ids.tolist() for _ in range(3)]
    second = loader()
    second.load_state_dict(first.state_dict())
    assert taken + [batch.sample_ids.tolist() for batch in second] == whole


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="device must name a torch device"):
        checked_device("nonsense")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch sees no CUDA device"):
            DataLoader(ArraySource([3]), max_tokens=8, device="cuda")
    assert isinstance(mover_for(torch.device("cpu")), Plain)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_side_stream_gives_the_same_batches():
    arguments = {"batch_size": 3, "max_tokens": 4096, "shuffle": True}
    source = ArraySource([1000 + 10 * i for i in range(30)])
    plain = [batch["input_ids"] for batch in DataLoader(source, **arguments)]
    moved = [batch["input_ids"] for batch in DataLoader(source, **arguments, device="cuda")]
    assert all(one.is_cuda for one in moved)
    assert all(torch.equal(one, other.cpu()) for one, other in zip(plain, moved, strict=True))
