"""Attention of a list of tasks on one device, with the log-sum-exp that lets parts be merged later.

A softmax over all keys is a weighted mean of softmaxes over parts of them, the weights being the
exponentials of each part's log-sum-exp; backward passes of the parts need only the whole output and the
whole log-sum-exp (Milakov and Gimelshein, arXiv 1805.02867; FlashAttention, arXiv 2205.14135).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .work import Block, Pattern, Tasks, blocks


@dataclass
class Answer:
    """Output so far. Axes: T = queries, H = heads, D = head size."""

    out: Tensor
    """[T, H, D] In the accumulation type; 0 where no key was seen."""
    lse: Tensor
    """[T, H] Log of the sum of exponentials of all scores so far; -inf where no key was seen."""
    untouched: bool = True
    """No task has written yet: disjoint tasks may write instead of merging."""

    @classmethod
    def empty(cls, q: Tensor) -> Answer:
        """Nothing seen yet by the queries ``q``: [T, H, D]."""
        kind = accumulation_type(q.dtype)
        lse = torch.full(q.shape[:2], -math.inf, dtype=kind, device=q.device)
        return cls(torch.zeros(q.shape, dtype=kind, device=q.device), lse)

    def merge(self, rows: Any, out: Tensor, lse: Tensor) -> None:
        """Add what the queries in ``rows`` saw in further keys."""
        before = self.lse[rows]
        after = torch.logaddexp(before, lse)
        kept, added = torch.exp(before - after), torch.exp(lse - after)
        self.out[rows] = self.out[rows] * kept.unsqueeze(-1) + out * added.unsqueeze(-1)
        self.lse[rows] = after


class Kernel(Protocol):
    """Attention over tasks, forward and backward."""

    def forward(
        self, answer: Answer, q: Tensor, k: Tensor, v: Tensor, tasks: Tasks, pattern: Pattern, scale: float
    ) -> None:
        """Merge what the tasks' queries see of their keys into ``answer``."""

    def backward(
        self,
        gradients: tuple[Tensor, Tensor, Tensor],
        given: tuple[Tensor, Tensor, Tensor],
        inputs: tuple[Tensor, Tensor, Tensor],
        tasks: Tasks,
        pattern: Pattern,
        scale: float,
    ) -> None:
        """Add to ``gradients`` (dq, dk, dv).

        given: d_out and the output and log-sum-exp over all keys; inputs: q, k, v.
        """


def accumulation_type(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precision, the type itself otherwise."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


BlockForward = Callable[[Tensor, Tensor, Tensor, bool, "Tensor | None", float], tuple[Tensor, Tensor]]
BlockBackward = Callable[..., tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class BlockKernel:
    """One call a block: a loop over samples, whose chunks are whole, diagonal or banded.

    On a CPU this beats padding and dense masks by 2.6 and 7 times on documents of mixed lengths.
    """

    block_forward: BlockForward
    block_backward: BlockBackward

    def forward(
        self, answer: Answer, q: Tensor, k: Tensor, v: Tensor, tasks: Tasks, pattern: Pattern, scale: float
    ) -> None:
        """See `Kernel`."""
        write = answer.untouched and _disjoint(tasks)
        for task in tasks:
            for block in blocks(task, pattern):
                rows = slice(block.q_start, block.q_start + block.q_count)
                queries, keys, values = _views(q, k, v, block)
                causal, mask = _mask(block, pattern, q)
                out, lse = self.block_forward(queries, keys, values, causal, mask, scale)
                # [groups, heads, rows, D] -> [rows, H, D]
                out = out.permute(2, 0, 1, 3).reshape(block.q_count, -1, out.shape[-1])
                lse = lse.permute(2, 0, 1).reshape(block.q_count, -1)
                first_of_rows = block.mask != "diagonal" or block.k_start == int(task[2])
                if write and first_of_rows:
                    answer.out[rows], answer.lse[rows] = out, lse
                else:
                    answer.merge(rows, out.to(answer.out.dtype), lse)
        answer.untouched = answer.untouched and tasks.shape[0] == 0

    def backward(
        self,
        gradients: tuple[Tensor, Tensor, Tensor],
        given: tuple[Tensor, Tensor, Tensor],
        inputs: tuple[Tensor, Tensor, Tensor],
        tasks: Tasks,
        pattern: Pattern,
        scale: float,
    ) -> None:
        """See `Kernel`."""
        dq, dk, dv = gradients
        d_out, out, lse = given
        q, k, v = inputs
        groups = k.shape[1]
        for task in tasks:
            for block in blocks(task, pattern):
                rows = slice(block.q_start, block.q_start + block.q_count)
                keys_at = slice(block.k_start, block.k_start + block.k_count)
                queries, keys, values = _views(q, k, v, block)
                causal, mask = _mask(block, pattern, q)
                # [groups, heads, rows]
                lse_rows = lse[rows].reshape(block.q_count, groups, -1).permute(1, 2, 0).contiguous()
                of_q, of_k, of_v = self.block_backward(
                    _grouped(d_out[rows], groups),
                    queries,
                    keys,
                    values,
                    _grouped(out[rows], groups),
                    lse_rows,
                    causal,
                    mask,
                    scale,
                )
                dq[rows] += of_q.permute(2, 0, 1, 3).reshape(block.q_count, -1, q.shape[-1])
                # query heads of a group share their keys
                dk[keys_at] += of_k.sum(1, dtype=dk.dtype).permute(1, 0, 2)
                dv[keys_at] += of_v.sum(1, dtype=dv.dtype).permute(1, 0, 2)


def _disjoint(tasks: Tasks) -> bool:
    """Whether no query stands in two tasks."""
    starts, counts = tasks[:, 0], tasks[:, 1]
    order = np.argsort(starts, kind="stable")
    return bool(np.all(starts[order][:-1] + counts[order][:-1] <= starts[order][1:]))


def _grouped(rows: Tensor, groups: int) -> Tensor:
    """[rows, H, D] -> [groups, H / groups, rows, D], without a copy."""
    grouped: Tensor = rows.unflatten(1, (groups, -1)).permute(1, 2, 0, 3)
    return grouped


def _views(q: Tensor, k: Tensor, v: Tensor, block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """Queries by key head, and keys and values spread over the query heads that share them; no copy."""
    groups = k.shape[1]
    queries = _grouped(q[block.q_start : block.q_start + block.q_count], groups)
    keys, values = (_grouped(x[block.k_start : block.k_start + block.k_count], groups) for x in (k, v))
    shape = (groups, queries.shape[1], block.k_count, k.shape[-1])
    return queries, keys.expand(shape), values.expand(shape)


def _mask(block: Block, pattern: Pattern, like: Tensor) -> tuple[bool, Tensor | None]:
    """Whether the kernel's own causal mask does, and otherwise what is added to the scores."""
    if block.mask != "pattern":
        return block.mask == "diagonal", None
    distance = (
        torch.arange(block.q_count, device=like.device).unsqueeze(1)
        + block.delta
        - torch.arange(block.k_count, device=like.device)
    )
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if pattern.causal:
        hidden |= distance < 0
    if pattern.window is not None:
        hidden |= distance.abs() >= pattern.window
    bias = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
    return False, bias.masked_fill_(hidden, -math.inf)[None, None]


def cpu_flash_forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Torch's tiled CPU attention, the one behind `scaled_dot_product_attention`, with its log-sum-exp."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=scale
    )
    return out, lse


def cpu_flash_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Its backward pass, given the output and log-sum-exp over all keys."""
    gradients: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            d_out, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale
        )
    )
    return gradients


def plain_forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Scores in full: for devices and types without a tiled kernel, and the other kernels' twin in tests."""
    scores = _scores(q, k, causal, mask, scale)
    lse = torch.logsumexp(scores, dim=-1)
    probabilities = torch.exp(scores - lse.unsqueeze(-1)).to(v.dtype)
    return probabilities @ v, lse


def plain_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same rule as the tiled kernels', in full."""
    probabilities = torch.exp(_scores(q, k, causal, mask, scale) - lse.unsqueeze(-1))
    kind = probabilities.dtype
    d_probabilities = (d_out @ v.transpose(-1, -2)).to(kind)
    own = (d_out.to(kind) * out.to(kind)).sum(-1, keepdim=True)
    d_scores = (probabilities * (d_probabilities - own) * scale).to(q.dtype)
    return d_scores @ k, d_scores.transpose(-1, -2) @ q, probabilities.to(q.dtype).transpose(-1, -2) @ d_out


def _scores(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None, scale: float) -> Tensor:
    scores = (q @ k.transpose(-1, -2)).to(accumulation_type(q.dtype)) * scale
    if causal:
        rows, columns = scores.shape[-2:]
        later = torch.ones(rows, columns, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores if mask is None else scores + mask


CPU_FLASH = BlockKernel(cpu_flash_forward, cpu_flash_backward)
PLAIN = BlockKernel(plain_forward, plain_backward)
