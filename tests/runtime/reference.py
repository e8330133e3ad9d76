"""Attention written out in full, one sample at a time: the oracle. Shares no code with the runtime."""

import math

import torch


def attend(q, k, v, lengths, *, causal=True, window=None):
    """q: [N, H, D], k, v: [N, H_kv, D] unpadded samples end to end. Output [N, H, D]."""
    group = q.shape[1] // k.shape[1]
    outs, start = [], 0
    for length in lengths:
        here = slice(start, start + length)
        start += length
        keys, values = k[here].repeat_interleave(group, 1), v[here].repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q[here], keys) / math.sqrt(q.shape[-1])
        distance = torch.arange(length)[:, None] - torch.arange(length)
        hidden = torch.zeros(length, length, dtype=torch.bool)
        if causal:
            hidden |= distance < 0
        if window is not None:
            hidden |= distance.abs() >= window
        scores = scores.masked_fill(hidden, -math.inf)
        outs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
    return torch.cat(outs) if outs else q
