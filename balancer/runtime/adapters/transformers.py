"""Attention of Hugging Face models, by their registry of attention functions.

    register_attention()
    model = AutoModelForCausalLM.from_config(config, attn_implementation="evenload")
    with runtime.no_sync(model, batch):
        logits = model(**inputs).logits

Packed samples stay apart and context-parallel ranks attend together, without a mask of T x T entries.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from balancer.runtime.attention import attention
from balancer.runtime.protocol import RunnableBatch
from balancer.runtime.running import current_batch


def register_attention(name: str = "evenload", method: str = "auto") -> str:
    """Make ``attn_implementation=name`` known to transformers; returns the name.

    Causal layers take their samples and their process group from the running batch (`no_sync`, `running`),
    else samples from ``cu_seq_lens_q``. Other layers, such as vision towers, take theirs from
    ``cu_seq_lens_q``, or each row of the input is one sample.
    """
    from transformers import AttentionInterface

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        return _attend(module, (query, key, value), attention_mask, scaling, dropout, kwargs, method), None

    AttentionInterface.register(name, attend)
    return name


def _attend(
    module: Any,
    inputs: tuple[Tensor, Tensor, Tensor],
    attention_mask: Tensor | None,
    scaling: float | None,
    dropout: float,
    kwargs: dict[str, Any],
    method: str,
) -> Tensor:
    """inputs: [B, H, T, D] queries, keys and values as transformers has them. [B, T, H, D] output."""
    if dropout:
        raise ValueError(
            f"attention dropout is not supported, got {dropout}. Set the config's attention_dropout to 0."
        )
    if attention_mask is not None:
        raise ValueError(
            "packed batches carry no attention_mask: samples are told apart by their lengths. Leave it out "
            "of the model's inputs."
        )
    is_causal = kwargs.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    rows = inputs[0].shape[0]
    # [B, H, T, D] -> [B * T, H, D]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in inputs)
    batch = _batch_for(causal, q.shape[0], rows, kwargs.get("cu_seq_lens_q"))
    window = kwargs.get("sliding_window")
    out = attention(q, k, v, batch, method, causal=causal, window=window, scale=scaling)
    shaped: Tensor = out.unflatten(0, (rows, -1))
    return shaped


def _batch_for(causal: bool, tokens: int, rows: int, cu_seq_lens: Tensor | None) -> RunnableBatch:
    running = current_batch()
    if causal and running is not None:
        return running
    if cu_seq_lens is not None:
        lengths = torch.diff(cu_seq_lens).cpu().numpy()
    else:
        lengths = np.full(rows, tokens // rows)
    alone = SimpleNamespace(seq_lengths=lengths, cp_degree=1, cp_rank=0, cp_group=None)
    return cast(RunnableBatch, alone)
