"""Flash attention on a GPU: all tasks of one kind in one call.

The kernels align masks at the lower right: query i sees keys up to ``i + k_count - q_count``. So they take
tasks that are visible as a whole, and causal or banded ones with ``delta == k_count - q_count``, which is
what gathered and local causal tasks are made to be. Windows between two shards of a ring, and gathered ones
that look both ways, are not of this kind: they run as plain blocks, exact but slower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .kernels import PLAIN, Answer
from .work import Pattern, Tasks


@dataclass(frozen=True)
class Call:
    """Sequences of one kernel call. Axis: n = tasks."""

    q_rows: Tensor | None
    """Rows of the queries, sequence after sequence; None: all rows, in order."""
    k_rows: Tensor | None
    cu_q: Tensor
    """int32[n + 1]"""
    cu_k: Tensor
    max_q: int
    max_k: int
    causal: bool
    window: tuple[int, int]
    """Keys before and after the query's own that it sees; -1 for all."""


VarlenForward = Callable[[Tensor, Tensor, Tensor, Call, float], tuple[Tensor, Tensor, Any]]
"""(q, k, v, call, scale) -> out [T, H, D], lse [H, T], random state"""
VarlenBackward = Callable[..., tuple[Tensor, Tensor, Tensor]]
"""(d_out, q, k, v, out, lse [H, T], call, scale) -> dq, dk, dv"""


@dataclass(frozen=True)
class VarlenKernel:
    """See `kernels.Kernel`."""

    varlen_forward: VarlenForward
    varlen_backward: VarlenBackward

    def forward(
        self, answer: Answer, q: Tensor, k: Tensor, v: Tensor, tasks: Tasks, pattern: Pattern, scale: float
    ) -> None:
        """See `kernels.Kernel`."""
        calls = calls_of(tasks, pattern, q.shape[0], k.shape[0], q.device)
        if calls is None:
            PLAIN.forward(answer, q, k, v, tasks, pattern, scale)
            return
        for call in calls:
            out, lse, _ = self.varlen_forward(
                _pick(q, call.q_rows), _pick(k, call.k_rows), _pick(v, call.k_rows), call, scale
            )
            lse = lse.transpose(0, 1)
            rows = slice(None) if call.q_rows is None else call.q_rows
            if answer.untouched:
                answer.out[rows], answer.lse[rows] = out.to(answer.out.dtype), lse.to(answer.lse.dtype)
            else:
                answer.merge(rows, out.to(answer.out.dtype), lse.to(answer.lse.dtype))
        # whole and aligned tasks never share a query in one list, so both may write
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
        """See `kernels.Kernel`."""
        q, k, v = inputs
        calls = calls_of(tasks, pattern, q.shape[0], k.shape[0], q.device)
        if calls is None:
            PLAIN.backward(gradients, given, inputs, tasks, pattern, scale)
            return
        for call in calls:
            d_out, out, lse = (_pick(x, call.q_rows) for x in given)
            of_inputs = self.varlen_backward(
                d_out.contiguous(),
                _pick(q, call.q_rows),
                _pick(k, call.k_rows),
                _pick(v, call.k_rows),
                out.contiguous(),
                lse.transpose(0, 1).contiguous(),
                call,
                scale,
            )
            for total, part, at in zip(
                gradients, of_inputs, (call.q_rows, call.k_rows, call.k_rows), strict=True
            ):
                if at is None:
                    total += part
                else:  # gathered tasks share keys, so a row may come several times
                    total.index_add_(0, at, part.to(total.dtype))


def calls_of(
    tasks: Tasks, pattern: Pattern, q_size: int, k_size: int, device: torch.device
) -> tuple[Call, ...] | None:
    """The kernel calls for ``tasks`` on ``q_size`` rows of queries and ``k_size`` of keys.

    None where such kernels cannot mask them.
    """
    return _calls(tasks.tobytes(), pattern, q_size, k_size, device)


@lru_cache(maxsize=256)
def _calls(
    data: bytes, pattern: Pattern, q_size: int, k_size: int, device: torch.device
) -> tuple[Call, ...] | None:
    tasks = np.frombuffer(data, dtype=np.int64).reshape(-1, 5)
    _, q_count, _, k_count, delta = tasks.T
    window = np.iinfo(np.int32).max if pattern.window is None else pattern.window
    nearest_fits = np.full(delta.shape, not pattern.causal) | (k_count - 1 <= delta)
    farthest_fits = (delta + q_count - 1 < window) & (
        np.full(delta.shape, pattern.causal) | (k_count - 1 - delta < window)
    )
    whole = nearest_fits & farthest_fits
    if not np.all(whole | (delta == k_count - q_count)):
        return None
    before = -1 if pattern.window is None else pattern.window - 1
    after = 0 if pattern.causal else before
    calls = []
    for chosen, causal, limits in ((whole, False, (-1, -1)), (~whole, pattern.causal, (before, after))):
        if chosen.any():
            calls.append(_call(tasks[chosen], causal, limits, q_size, k_size, device))
    return tuple(calls)


def _call(
    tasks: Tasks, causal: bool, window: tuple[int, int], q_size: int, k_size: int, device: torch.device
) -> Call:
    q_start, q_count, k_start, k_count, _ = tasks.T
    return Call(
        q_rows=_rows(q_start, q_count, q_size, device),
        k_rows=_rows(k_start, k_count, k_size, device),
        cu_q=_cumulative(q_count, device),
        cu_k=_cumulative(k_count, device),
        max_q=int(q_count.max()),
        max_k=int(k_count.max()),
        causal=causal,
        window=window,
    )


def _rows(
    starts: NDArray[np.int64], counts: NDArray[np.int64], size: int, device: torch.device
) -> Tensor | None:
    total = int(counts.sum())
    rows = np.arange(total) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
    if total == size and np.array_equal(rows, np.arange(size)):
        return None
    return torch.from_numpy(rows).to(device)


def _cumulative(counts: NDArray[np.int64], device: torch.device) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)).to(device)


def _pick(tensor: Tensor, rows: Tensor | None) -> Tensor:
    return tensor if rows is None else tensor.index_select(0, rows)


def torch_flash_forward(
    q: Tensor, k: Tensor, v: Tensor, call: Call, scale: float
) -> tuple[Tensor, Tensor, Any]:
    """The kernel behind `torch.nn.attention.varlen`; it takes as many key heads as query heads."""
    k, v = _spread(k, q.shape[1]), _spread(v, q.shape[1])
    out, lse, state, _, _ = torch.ops.aten._flash_attention_forward(
        q, k, v, call.cu_q, call.cu_k, call.max_q, call.max_k, 0.0, call.causal, False, scale=scale,
        window_size_left=call.window[0], window_size_right=call.window[1],
    )  # fmt: skip
    return out, lse, state


def torch_flash_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, call: Call, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Its backward pass. Without dropout the random state is never read."""
    groups = k.shape[1]
    state = torch.zeros(2, dtype=torch.uint64, device=q.device)
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        d_out, q, _spread(k, q.shape[1]), _spread(v, q.shape[1]), out, lse, call.cu_q, call.cu_k, call.max_q,
        call.max_k, 0.0, call.causal, state, state.new_zeros(0), scale=scale,
        window_size_left=call.window[0], window_size_right=call.window[1],
    )  # fmt: skip
    return dq, dk.unflatten(1, (groups, -1)).sum(2), dv.unflatten(1, (groups, -1)).sum(2)


def _spread(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def flash_attn_forward(
    q: Tensor, k: Tensor, v: Tensor, call: Call, scale: float
) -> tuple[Tensor, Tensor, Any]:
    """The flash-attn package, version 2.7 or newer, which takes the window as two numbers."""
    from flash_attn.flash_attn_interface import _flash_attn_varlen_forward

    out, lse, _, state = _flash_attn_varlen_forward(
        q, k, v, call.cu_q, call.cu_k, call.max_q, call.max_k, 0.0, scale, causal=call.causal,
        window_size_left=call.window[0], window_size_right=call.window[1],
    )  # fmt: skip
    return out, lse, state


def flash_attn_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, call: Call, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Its backward pass."""
    from flash_attn.flash_attn_interface import _flash_attn_varlen_backward

    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    _flash_attn_varlen_backward(
        d_out, q, k, v, out, lse, dq, dk, dv, call.cu_q, call.cu_k, call.max_q, call.max_k, 0.0, scale,
        call.causal, call.window[0], call.window[1], 0.0, None, torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    return dq, dk, dv


TORCH_FLASH = VarlenKernel(torch_flash_forward, torch_flash_backward)
FLASH_ATTN = VarlenKernel(flash_attn_forward, flash_attn_backward)
