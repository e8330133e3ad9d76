"""Batches travel from workers through shared memory, the same to the last bit, and it is used again."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import sys

import numpy as np
import pytest
import torch

from loaders import DataLoader
from loaders.batches.collate import Packed
from loaders.batches.reader import Reader
from loaders.batches.shares import Share
from loaders.workers import slots as slots_module
from loaders.workers.slots import SMALLEST_BYTES, Slots, open_slots, parcel, write_to
from tests.loaders.arrays import ArraySource, MaskedSource

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's memory without a name")

BIG = SMALLEST_BYTES // 4


def sent(slots, worker, arrays):
    """What the training process gets of what a worker sends; both are this process."""
    write_to(slots, worker)
    try:
        message = pickle.dumps(parcel(arrays))
    finally:
        write_to(None, 0)
    return pickle.loads(message), len(message)


@pytest.fixture
def slots():
    return Slots(2, 3, 1 << 20)


@pytest.mark.parametrize("kind", [np.int32, np.uint16, np.int64, np.uint8])
def test_arrays_arrive_as_they_were_and_not_in_the_message(slots, kind):
    tokens = np.random.default_rng(0).integers(0, 200, 4 * BIG + 3).astype(kind)
    labels = np.arange(tokens.size) - 100
    (got, got_labels), size = sent(slots, 1, [tokens, labels])
    assert got.dtype == kind
    assert got_labels.dtype == labels.dtype
    np.testing.assert_array_equal(got, tokens)
    np.testing.assert_array_equal(got_labels, labels)
    assert size < 1000


def test_a_slot_is_written_again_only_when_nothing_refers_to_its_arrays(slots):
    held = [sent(slots, 0, [np.full(BIG, n, np.int32)])[0][0] for n in range(3)]
    assert slots.flags.tolist() == [1, 1, 1, 0, 0, 0]
    views = [torch.from_numpy(held[0])[5:], held[1][3:].view(np.uint8), held[2].reshape(2, -1)]
    del held
    gc.collect()
    assert slots.flags.tolist() == [1, 1, 1, 0, 0, 0], "views of them live"
    (fourth,), size = sent(slots, 0, [np.full(BIG, 9, np.int32)])
    assert size > 4 * BIG, "no slot is free: it goes through the pipe"
    assert fourth[0] == 9
    assert views[0].tolist() == [0] * (BIG - 5)
    assert views[2].max() == 2
    del views[1]
    gc.collect()
    assert slots.flags.tolist() == [1, 0, 1, 0, 0, 0]
    assert sent(slots, 0, [np.full(BIG, 8, np.int32)])[1] < 1000


def test_what_is_small_or_larger_than_a_slot_goes_through_the_pipe(slots):
    for count in (3, (1 << 20) + 1):
        (got,), size = sent(slots, 0, [np.ones(count, np.uint8)])
        assert got.sum() == count
        assert size > count
    assert slots.flags.sum() == 0


def test_arrays_outlive_the_slots():
    slots = Slots(1, 1, 1 << 20)
    (got,), _ = sent(slots, 0, [np.arange(BIG)])
    del slots
    gc.collect()
    np.testing.assert_array_equal(got, np.arange(BIG))


def test_slots_leave_no_descriptor_behind():
    """Of their own: what other tests left behind may go at any moment."""

    def memory():
        found = set()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # just closed
                found.add(os.stat(f"/proc/self/fd/{name}").st_ino)
        return found

    slots = Slots(1, 1, 1 << 20)
    own = os.fstat(slots.file).st_ino
    (got,), _ = sent(slots, 0, [np.arange(BIG)])
    assert own in memory()
    del slots, got
    gc.collect()
    assert own not in memory()


def test_there_are_none_where_the_system_has_no_such_memory(monkeypatch):
    def refuse(*_):
        raise OSError("forbidden")

    monkeypatch.setattr(slots_module.os, "memfd_create", refuse)
    assert open_slots(2, 3, 1 << 20) is None
    monkeypatch.delattr(slots_module.os, "memfd_create")
    assert open_slots(2, 3, 1 << 20) is None
    tokens = np.arange(BIG)
    np.testing.assert_array_equal(sent(None, 0, [tokens])[0][0], tokens)


def test_every_field_of_a_batch_arrives(slots):
    source = ArraySource([9000] * 4)
    batch = next(iter(DataLoader(source, batch_size=4, max_tokens=40_000)))
    share = Share(
        step=0, slot=0, last_in_step=True, cp_degree=1, cp_rank=0, first_rank=0, num_ranks=1,
        step_loss_tokens=4 * 8999, source=np.zeros(4, np.int32), row=batch.sample_ids[:, 1],
        start=np.zeros(4, np.int64), num_tokens=np.full(4, 9000), num_loss_tokens=np.full(4, 8999),
        pad_to=40_000,
    )  # fmt: skip
    packed = Reader([source], capacity=40_000)[share]
    write_to(slots, 0)
    try:
        message = pickle.dumps(packed)
    finally:
        write_to(None, 0)
    got = pickle.loads(message)
    assert isinstance(got, Packed)
    assert len(message) < 4000
    for name in Packed.__slots__:
        if name not in ("tokens", "place"):
            assert getattr(got, name) == getattr(packed, name)
    assert got.pad_to == (40_000,)
    assert got.labels is None
    laid_out = got.to_batch()
    assert torch.equal(laid_out["input_ids"][:, :36_000], batch["input_ids"])
    assert laid_out.columns == batch.columns
    assert np.array_equal(laid_out.sample_ids, batch.sample_ids)


def epoch(num_workers, masked, **arguments):
    lengths = np.random.default_rng(1).integers(1000, 20_000, 60)
    source = (MaskedSource if masked else ArraySource)(lengths)
    loader = DataLoader(
        source, batch_size=6, max_tokens=16_384, shuffle=True, num_workers=num_workers, oversize="split",
        **arguments,
    )  # fmt: skip
    return [
        (batch.step, batch.slot, batch.num_loss_tokens, {k: np.asarray(v) for k, v in batch.items()})
        for batch in loader
    ]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        {"bos": 1, "eos": 2},
        pytest.param({"multiprocessing_context": "spawn"}, marks=pytest.mark.slow),
        pytest.param({"multiprocessing_context": "forkserver"}, marks=pytest.mark.slow),
        pytest.param({"persistent_workers": True, "prefetch_factor": 5}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_workers_give_the_batches_of_one_process(masked, arguments):
    borders = {name: arguments[name] for name in ("bos", "eos") if name in arguments}
    expected, found = epoch(0, masked, **borders), epoch(2, masked, **arguments)
    assert len(expected) == len(found)
    for (*place, one), (*place_there, other) in zip(expected, found, strict=True):
        assert place == place_there
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name])


def test_a_worker_uses_its_slots_again_and_again(monkeypatch):
    """All large batches of an epoch go through three slots a worker."""
    taken = multiprocessing.RawArray("q", 2)
    original = Slots.put

    def counted(self, worker, arrays):
        ticket = original(self, worker, arrays)
        taken[0 if ticket is None else 1] += 1
        return ticket

    monkeypatch.setattr(Slots, "put", counted)
    batches = epoch(1, masked=False)
    assert sum(taken) == len(batches)
    assert taken[1] > 10
