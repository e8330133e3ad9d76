"""The two mistakes of a loop that comes from another loader; neither raises anything where it is made.

Both are looked for once in a process and only told where they are certain: what frameworks or the user hold
back in their own way is left alone.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from .protocol import RunnableBatch

EXCHANGED = (
    "DDP exchanges gradients in step {step}, slot {slot}, which is not the step's last micro-batch: "
    "runtime.no_sync was left out. Each micro-batch costs an all-reduce, and where ranks have unequally "
    'many, the job hangs or ends in "Received data size doesn\'t match". Write, around forward and '
    "backward:\n"
    "    with runtime.no_sync(model, batch):\n"
    "        runtime.scale_loss(loss_sum, batch).backward()"
)
STEPPED = (
    "an optimizer stepped in the middle of step {step}, before slot {slot}: each of its steps then sees a "
    "part of the batch, with the weight of a part. Write:\n"
    "    if batch.last_in_step:\n"
    "        optimizer.step(); optimizer.zero_grad()"
)


@dataclass
class _Looked:
    """What this process has done so far."""

    exchange: bool = False
    """Whether there is no more to learn about the exchange of gradients."""
    optimizer: bool = False
    """The same of the optimizer."""


_looked = _Looked()


def gradients_are_held_back() -> None:
    """`no_sync` is in use."""
    _looked.exchange = True


def look(loss: Tensor, batch: RunnableBatch, averaged: bool) -> None:
    """Warn, once each, if gradients meet or an optimizer stepped before a step's last micro-batch.

    Args:
        loss: what the micro-batch's backward pass begins with.
        batch: the micro-batch.
        averaged: whether gradients of different ranks are averaged by a wrapper.
    """
    if (_looked.exchange and _looked.optimizer) or not isinstance(loss, Tensor) or loss.grad_fn is None:
        return
    if torch.compiler.is_compiling():
        return
    if not _looked.optimizer:
        _look_for_steps(loss, batch)
    if not _looked.exchange:
        # behind a step's end nothing tells whether DDP's last forward was this micro-batch's
        _looked.exchange = True
        if not batch.last_in_step and averaged and _is_exchanged(loss):
            warnings.warn(EXCHANGED.format(step=batch.step, slot=batch.slot), stacklevel=3)


def _is_exchanged(loss: Tensor) -> bool:
    """Whether the backward pass of this loss will start DDP's all-reduce."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return False
    try:
        return _reaches_an_exchange(loss)
    except (
        AttributeError
    ):  # DDP's own names are not promised: another torch may have others, and nothing is told
        return False


def _reaches_an_exchange(loss: Tensor) -> bool:
    # type() and not isinstance: proxies in the heap answer the latter by loading what they stand for
    wrapped = [one for one in gc.get_objects() if issubclass(type(one), DistributedDataParallel)]
    ready = {id(p) for one in wrapped if _will_exchange(one) for p in one.parameters()}
    return bool(ready) and any(id(leaf) in ready for leaf in _leaves(loss))


def _will_exchange(wrapped: Any) -> bool:
    """Whether its last forward pass prepared an all-reduce that nothing but DDP itself shapes.

    DDP sets ``require_forward_param_sync`` in every forward pass, to whether gradients will meet. Inside its
    own forward pass (Lightning) somebody else prepares the backward pass; hooks and `Join` have own rules.
    """
    return bool(
        getattr(wrapped, "_lazy_init_ran", False)
        and wrapped.require_backward_grad_sync
        and wrapped.require_forward_param_sync
        and getattr(DistributedDataParallel, "_active_ddp_module", None) is None
        and not getattr(wrapped, "_comm_hooks", True)
        and not getattr(wrapped, "_use_python_reducer", True)
        and not getattr(wrapped, "_delay_all_reduce_all_params", True)
        and not wrapped._join_config.enable
        and dist.get_world_size(wrapped.process_group) > 1
    )


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """Tensors that the backward pass gives gradients to, those near the loss first."""
    waiting: list[Any] = [loss.grad_fn]
    met = set()
    while waiting:
        node = waiting.pop()
        if node in met:
            continue
        met.add(node)
        if node.name() == "torch::autograd::AccumulateGrad":
            yield node.variable
        waiting.extend(following for following, _ in node.next_functions if following is not None)


class _Steps:
    """Whether an optimizer of one parameter stepped since a micro-batch that was not its step's last."""

    def __init__(self, leaf: Tensor, batch: RunnableBatch) -> None:
        self.step, self.slot, self.stepped = batch.step, batch.slot, False
        self._leaf = weakref.ref(leaf)
        self._hook = register_optimizer_step_post_hook(self._note)

    def _note(self, optimizer: Any, *_: Any) -> None:
        leaf = self._leaf()
        self.stepped |= any(p is leaf for group in optimizer.param_groups for p in group["params"])

    def end(self) -> None:
        self._hook.remove()


_steps: list[_Steps] = []


def _look_for_steps(loss: Tensor, batch: RunnableBatch) -> None:
    if _steps:
        before = _steps.pop()
        before.end()
        if (before.step, before.slot + 1) == (batch.step, batch.slot):
            _looked.optimizer = True
            if before.stepped:
                warnings.warn(STEPPED.format(step=batch.step, slot=batch.slot), stacklevel=4)
            return
    leaf = None if batch.last_in_step else next(_leaves(loss), None)
    if leaf is not None:
        _steps.append(_Steps(leaf, batch))
