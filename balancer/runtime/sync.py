"""Gradients meet once a step, whatever the number of micro-batches on each rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .porting import gradients_are_held_back
from .protocol import RunnableBatch
from .running import running


@contextmanager
def no_sync(model: Any, batch: RunnableBatch) -> Iterator[None]:
    """Forward and backward inside; gradients are exchanged only if ``batch.last_in_step``.

    DDP and FSDP1 offer ``no_sync``, FSDP2 (`fully_shard`) offers ``set_requires_gradient_sync``; any other
    model has nothing to hold back. Every rank must run exactly one micro-batch with ``last_in_step`` a step.
    """
    gradients_are_held_back()
    with running(batch), _held_back(model, batch):
        yield


@contextmanager
def _held_back(model: Any, batch: RunnableBatch) -> Iterator[None]:
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(batch.last_in_step)
        model.set_is_last_backward(batch.last_in_step)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)
            model.set_is_last_backward(True)
    elif hasattr(model, "no_sync") and not batch.last_in_step:
        with model.no_sync():
            yield
    else:
        yield
