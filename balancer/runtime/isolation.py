"""Does a model keep packed samples apart? Tokens of some samples change, outputs of the others must not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .running import running


@torch.no_grad()
def check_isolation(
    model: torch.nn.Module,
    batch: Any,
    forward: Callable[[Any], Tensor] | None = None,
    *,
    tolerance: float = 1e-4,
) -> None:
    """Three forward passes in eval mode: as it is, every second sample changed, the other half changed.

    Args:
        model: on the batch's device. Where it talks to other ranks (DDP, FSDP), all of them must check.
        batch: a loader's batch of ``cp_degree`` 1 without media: its ids are replaced by other ids of it.
        forward: the loop's own call, batch -> [1, T, ...] a token's outputs; None: ``model(**batch)`` without
            labels, its ``logits`` where it has them.
        tolerance: largest change that counts as none, as a part of the largest output.

    Raises:
        RuntimeError: names the samples whose outputs follow tokens of others, and the ways out.
        ValueError: a batch on which nothing can be seen, or outputs that are not numbers for each token.
    """
    lengths, ids = torch.as_tensor(batch.seq_lengths).long().cpu(), batch["input_ids"]
    known = ids.unique()
    if batch.cp_degree != 1 or lengths.numel() < 2 or known.numel() < 2:
        raise ValueError(
            "check_isolation needs a batch of cp_degree 1, two samples and two different ids or more, got "
            f"degree {batch.cp_degree}, {lengths.numel()} samples, {known.numel()} ids. Take another batch."
        )
    sample = torch.full((ids.numel(),), -1)  # [T] sample of each token; -1: padding behind the last one
    sample[: int(lengths.sum())] = torch.repeat_interleave(lengths)
    sample = sample.to(ids.device)
    others = known[(torch.searchsorted(known, ids) + 1) % known.numel()]  # [1, T] another id everywhere
    modes = [(module, module.training) for module in model.modules()]
    saw: set[int] = set()
    try:
        model.eval()
        before = _outputs(model, batch, forward)
        limit = tolerance * before[before.isfinite()].abs().max()
        # halves and not one sample: a window may reach no further than to the neighbours
        for half in (0, 1):
            changed = copy.copy(batch)
            changed["input_ids"] = torch.where((sample >= 0) & (sample % 2 == half), others, ids)
            after = _outputs(model, changed, forward)
            moved = torch.where(after == before, 0.0, (after - before).abs()).amax(1) > limit
            saw.update(sample[moved & (sample >= 0) & (sample % 2 != half)].tolist())
    finally:
        for module, training in modes:
            module.training = training
    if saw:
        raise RuntimeError(
            f"samples {sorted(saw)} of {lengths.numel()} in the batch saw others: their outputs change with "
            "tokens that are not theirs. Give the model position_ids, cu_seq_lens_q/k, max_length_q/k and "
            'use_cache=False, no attention_mask, and attn_implementation="flash_attention_2" or '
            "register_attention() (balancer.runtime.adapters.transformers); use runtime.attention in a model "
            "of your own; give recurrent layers seq_idx; or do not pack: max_samples=1. A loop "
            "that does not call model(**batch) passes its own call as forward=."
        )


def _outputs(model: Any, batch: Any, forward: Callable[[Any], Tensor] | None) -> Tensor:
    """[T, C] Outputs of each token."""
    with running(batch):
        if forward is not None:
            out = forward(batch)
        else:
            inputs = {name: value for name, value in batch.items() if name not in ("labels", "shift_labels")}
            out = model(**inputs)
            out = getattr(out, "logits", out)
    tokens = batch["input_ids"].numel()
    if not isinstance(out, Tensor) or tuple(out.shape[:2]) != (1, tokens) or out.isnan().any():
        came = f"{tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(
            f"outputs must be a tensor [1, {tokens}, ...] without NaN for this batch, got {came}. Pass "
            "forward=: a function of the batch that gives them."
        )
    return out.reshape(tokens, -1)
