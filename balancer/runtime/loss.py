"""The weight of one rank's loss in the step, known from metadata before the first backward pass.

With W the step's sum of token weights over all ranks and micro-batches, every rank back-propagates its
local sum divided by W and gradients are summed. Nothing then depends on the split, on how many
micro-batches a rank ran or on context-parallel degrees. Means of means are wrong as soon as token counts
differ. Wrappers that average gradients (DDP, FSDP) divide by the number of ranks, so that is multiplied in.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from .protocol import RunnableBatch

Reduction = Literal["mean", "sum"]


def scale_loss(
    loss_sum: Tensor,
    batch: RunnableBatch,
    reduction: Reduction = "mean",
    *,
    total_weight: float | None = None,
) -> Tensor:
    """What to back-propagate for this micro-batch.

    Args:
        loss_sum: sum, not mean, of the losses of this rank's tokens; times their weights in a weighted loss.
        batch: the micro-batch they come from.
        reduction: what the wrapper does with gradients of different ranks: "mean" (DDP, FSDP) or "sum".
        total_weight: the step's sum of token weights over all ranks and micro-batches. None: all labels
            weigh 1 (``batch.step_loss_tokens``).

    A step without labels gives 0, with its graph, so that the backward pass and its collectives still run.
    """
    total = batch.step_loss_tokens if total_weight is None else total_weight
    if total < 0:
        raise ValueError(f"step {batch.step}: the step's loss weight must not be negative, got {total}.")
    return loss_sum * (_gradient_factor(batch, reduction) / total if total else 0.0)


def auxiliary_weight(batch: RunnableBatch, reduction: Reduction = "mean") -> float:
    """Weight of a term that is a mean over one micro-batch: MoE balance, router z, multi-token prediction.

    It is this rank's share of the step's labels, so the weights of a step add up to 1 however it is cut. Use
    ``loss = scale_loss(loss_sum, batch) + auxiliary_weight(batch) * auxiliary``.
    """
    if not batch.step_loss_tokens:
        return 0.0
    return _gradient_factor(batch, reduction) * batch.num_loss_tokens / batch.step_loss_tokens


def _gradient_factor(batch: RunnableBatch, reduction: Reduction) -> int:
    if reduction == "mean":
        return batch.num_ranks
    if reduction == "sum":
        return 1
    raise ValueError(f'reduction must be "mean" (DDP, FSDP) or "sum", got {reduction!r}.')
