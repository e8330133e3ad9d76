"""Gradient norm clipping on the step's gradient, not on a part of it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .protocol import RunnableBatch


def clip_grad_norm(
    parameters: Iterable[Tensor], max_norm: float, batch: RunnableBatch, norm_type: float = 2.0
) -> Tensor:
    """Scale gradients so that the norm of all of them is at most ``max_norm``; returns the norm before.

    After `scale_loss` and the step's last backward pass the gradient is that of the step's mean loss on every
    rank, so its norm needs no further factor. Sharded parameters (FSDP2) are summed over their shards.

    Raises ValueError before the step's last micro-batch, when gradients are still parts.
    """
    if not batch.last_in_step:
        raise ValueError(
            f"step {batch.step}, slot {batch.slot}: gradients are still those of a part of the step. Clip "
            "after the micro-batch with last_in_step."
        )
    norm = torch.nn.utils.clip_grad_norm_(list(parameters), max_norm, norm_type)
    whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole
