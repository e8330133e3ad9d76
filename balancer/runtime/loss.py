"""The weight of one rank's loss in the step, known from metadata before the first backward pass.

With W the step's sum of token weights over all ranks and micro-batches, every rank back-propagates its
local sum divided by W and gradients are summed. Nothing then depends on the split, on how many
micro-batches a rank ran or on context-parallel degrees. Means of means are wrong as soon as token counts
differ. Wrappers that average gradients (DDP, FSDP) divide by the number of ranks, so that is multiplied in.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from balancer.sharding import aligned_lengths

from .agreement import device_of
from .peers import Peers
from .porting import look
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

    It takes a sum and cannot notice a mean, which is a scalar too: with ``outputs.loss`` or
    ``cross_entropy(..., reduction="mean")`` gradients are too small by about the tokens of a micro-batch.

    Args:
        loss_sum: scalar; sum, not mean, of the losses of this rank's tokens; times their weights in a
            weighted loss.
        batch: the micro-batch they come from.
        reduction: what the wrapper does with gradients of different ranks: "mean" (DDP, FSDP) or "sum".
        total_weight: the step's sum of token weights over all ranks and micro-batches. None: all labels
            weigh 1 (``batch.step_loss_tokens``).

    A step without labels gives 0, with its graph, so that the backward pass and its collectives still run.

    Warns once where it is certain that gradients meet, or an optimizer stepped, before the step's last
    micro-batch. Raises ValueError for more than one loss, a weight that is none, or another ``reduction``.
    """
    if isinstance(loss_sum, Tensor) and loss_sum.numel() != 1:
        raise ValueError(
            f"step {batch.step}, slot {batch.slot}: loss_sum must be a scalar, got shape "
            f"{tuple(loss_sum.shape)}. Give the sum over this rank's tokens: losses.sum()."
        )
    total = batch.step_loss_tokens if total_weight is None else total_weight
    if not 0 <= total < math.inf:
        raise ValueError(f"step {batch.step}: the step's loss weight must be finite, 0 or more; got {total}.")
    factor = _gradient_factor(batch, reduction) / total if total else 0.0
    look(loss_sum, batch, averaged=reduction == "mean")
    return loss_sum * factor


def auxiliary_weight(batch: RunnableBatch, reduction: Reduction = "mean") -> float:
    """Weight of a term that is a mean over one micro-batch: MoE balance, router z, multi-token prediction.

    It is this rank's share of the step's labels, so the weights of a step add up to 1 however it is cut. Use
    ``loss = scale_loss(loss_sum, batch) + auxiliary_weight(batch) * auxiliary``.
    """
    if not batch.step_loss_tokens:
        return 0.0
    return _gradient_factor(batch, reduction) * batch.num_loss_tokens / batch.step_loss_tokens


def sample_weights(batch: RunnableBatch, labels: Tensor, ignore_index: int = -100) -> Tensor:
    """[T] Token weights under which every sample of the step counts the same, however long it is.

    A token weighs 1 / (labels of its sample), so the step's total weight is its samples with labels:
    ``scale_loss((losses * weights).sum(), batch, total_weight=samples)``. Pieces of a split sample count as
    samples. Labels of a shared sample are counted over its ranks by one small all-gather in the CP group.

    Args:
        batch: the micro-batch; with ``cp_degree > 1`` all members of its group must call.
        labels: [T] or [1, T] shifted labels of this rank's tokens.
        ignore_index: label of tokens that do not count; they weigh 0.
    """
    flat = labels.flatten()
    lengths = batch.seq_lengths
    true = lengths.cpu().numpy() if isinstance(lengths, Tensor) else np.asarray(lengths)
    held = aligned_lengths(true, batch.cp_degree) // batch.cp_degree
    sample = torch.repeat_interleave(torch.from_numpy(held).to(flat.device))  # [T'] sample of each token
    counted = torch.zeros(flat.shape, dtype=torch.float32, device=flat.device)
    counted[: sample.numel()] = (flat[: sample.numel()] != ignore_index).float()
    counts = counted.new_zeros(held.size).index_add_(0, sample, counted[: sample.numel()])
    if batch.cp_degree > 1:
        counts = Peers(batch.cp_group).all_gather(counts).sum(0)
    counted[: sample.numel()] /= counts.clamp(min=1)[sample]
    return counted


def sum_over_ranks(value: float, group: Any = None) -> float:
    """The sum of every rank's ``value``: a step's total weight where no metadata knows it. One all-reduce.

    Every rank calls it once a step, before its first backward pass, with the sum over its micro-batches.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return float(value)
    total = torch.tensor([value], dtype=torch.float64, device=device_of(group))
    dist.all_reduce(total, group=group)
    return float(total)


def _gradient_factor(batch: RunnableBatch, reduction: Reduction) -> int:
    if reduction == "mean":
        return batch.num_ranks
    if reduction == "sum":
        return 1
    raise ValueError(f'reduction must be "mean" (DDP, FSDP) or "sum", got {reduction!r}.')
