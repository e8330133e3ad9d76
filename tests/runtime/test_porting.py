"""Mistakes of a ported loop are told once where they are made, and never where they are not."""

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import _global_optimizer_post_hooks

from balancer import runtime
from balancer.runtime import porting
from tests.runtime.batches import PlainBatch
from tests.support.ranks import run_ranks

SLOTS = 3


@pytest.fixture(autouse=True)
def _nothing_looked_at(monkeypatch):
    monkeypatch.setattr(porting, "_looked", porting._Looked())
    monkeypatch.setattr(porting, "_steps", [])


def steps_of(*slots):
    for step, count in enumerate(slots):
        for slot in range(count):
            yield PlainBatch(step=step, slot=slot, last_in_step=slot == count - 1, step_loss_tokens=4)


def told_by(loop, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop(*args)
    return [str(one.message) for one in caught if issubclass(one.category, UserWarning)]


def optimizer_loop(every_micro_batch, slots=(SLOTS, SLOTS), own=True):
    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD((model if own else other).parameters(), lr=0.1)
    for batch in steps_of(*slots):
        runtime.scale_loss(model(torch.ones(3, 2)).sum(), batch).backward()
        if batch.last_in_step or every_micro_batch:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("slots", [(SLOTS, SLOTS), (1, 2, 3)])
def test_an_optimizer_that_steps_on_every_micro_batch_is_told_once(slots):
    (told,) = told_by(optimizer_loop, True, slots)
    assert f"in the middle of step {slots.index(max(slots[:2]))}, before slot 1" in told
    assert "if batch.last_in_step:" in told


@pytest.mark.parametrize("loop", [(False,), (False, (1, 2, 3)), (True, (1, 1, 1)), (True, (2, 2), False)])
def test_one_that_does_not_or_trains_something_else_is_left_alone(loop):
    assert told_by(optimizer_loop, *loop) == []


def test_no_hook_stays_behind():
    before = len(_global_optimizer_post_hooks)
    told_by(optimizer_loop, True)
    assert len(_global_optimizer_post_hooks) == before
    assert porting._steps == []


def test_a_warning_points_to_the_line_of_the_loop():
    with pytest.warns(UserWarning, match="in the middle") as caught:
        optimizer_loop(True)
    assert caught[0].filename == __file__


def held_by_hand(model, batch):
    return nullcontext() if batch.last_in_step else model.no_sync()


def nothing(model, batch):
    return nullcontext()


def ddp_loop(held, reduction="mean", bypass=False, hook=False, slots=(SLOTS,)):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    if hook:
        model.register_comm_hook(None, allreduce_hook)
    for batch in steps_of(*slots):
        with held(model, batch):
            forward = model.module if bypass and not batch.last_in_step else model
            runtime.scale_loss(forward(torch.ones(3, 2)).sum(), batch, reduction).backward()


def one_rank_of_ddp(rank):
    told = {}
    for name, loop in {
        "left out": (nothing,),
        "ours": (runtime.no_sync,),
        "torch's": (held_by_hand,),
        "summed": (nothing, "sum"),
        "reduced by hand": (nothing, "mean", True),
        "reduced by hand, behind a whole step": (nothing, "mean", True, False, (1, 3)),
        "with a hook": (nothing, "mean", False, True),
        "one micro-batch a step": (nothing, "mean", False, False, (1, 1, 1)),
    }.items():
        porting._looked = porting._Looked()
        told[name] = told_by(ddp_loop, *loop)
    return told


def test_gradients_that_meet_in_every_micro_batch_are_told_once_and_only_then():
    for told in run_ranks(one_rank_of_ddp, 2):
        (message,) = told.pop("left out")
        assert "step 0, slot 0" in message
        assert "with runtime.no_sync(model, batch):" in message
        assert set(map(len, told.values())) == {0}, told


def test_a_process_alone_exchanges_nothing():
    assert run_ranks(one_rank_of_ddp, 1)[0]["left out"] == []


def test_another_torch_whose_ddp_has_other_names_is_told_nothing(monkeypatch):
    def renamed(loss):
        raise AttributeError("require_backward_grad_sync")

    monkeypatch.setattr("balancer.runtime.porting._reaches_an_exchange", renamed)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group=None: 2)
    assert not porting._is_exchanged(torch.ones(1, requires_grad=True).sum())
