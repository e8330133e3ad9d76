"""What Megatron-Core's attention wants to know of a packed micro-batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from balancer.runtime.protocol import RunnableBatch
from balancer.sharding import aligned_lengths


def packed_seq_params(batch: RunnableBatch, *, device: Any = None, tensor_degree: int = 1) -> dict[str, Any]:
    """Keyword arguments of ``megatron.core.packed_seq_params.PackedSeqParams``.

    Boundaries are those of the whole group's samples, true and padded, as its THD format has them: its
    attention divides by ``local_cp_size`` itself. Shards are zigzag, as Transformer Engine's are.

    Args:
        batch: the micro-batch, with its ``cp_group`` attached where ``cp_degree > 1``.
        device: where the boundaries go; None: the CPU.
        tensor_degree: ranks of sequence parallelism, as the loader was told.
    """
    lengths = batch.seq_lengths
    true = np.asarray(lengths.cpu() if isinstance(lengths, torch.Tensor) else lengths, dtype=np.int64)
    padded = aligned_lengths(true, batch.cp_degree, tensor_degree=tensor_degree)
    longest = int(padded.max(initial=0))
    borders, padded_borders = _borders(true, device), _borders(padded, device)
    return {
        "qkv_format": "thd",
        "cu_seqlens_q": borders,
        "cu_seqlens_kv": borders,
        "cu_seqlens_q_padded": padded_borders,
        "cu_seqlens_kv_padded": padded_borders,
        "max_seqlen_q": longest,
        "max_seqlen_kv": longest,
        "local_cp_size": batch.cp_degree,
        "cp_group": batch.cp_group,
    }


def _borders(lengths: NDArray[np.int64], device: Any) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)).to(device)
