"""Four ways for the ranks of a group to attend together; each with its own backward pass.

Every method calls the same exchanges on all members, whatever lengths each of them holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from balancer.runtime.peers import Peers

from .kernels import Answer, Kernel, accumulation_type
from .work import Lengths, Pattern, gathered_tasks, local_tasks, natural_order, ring_tasks


@dataclass(frozen=True)
class Call:
    """One attention call: who attends to what, with what."""

    lengths: Lengths
    pattern: Pattern
    scale: float
    kernel: Kernel
    peers: Peers | None
    """None where the rank is alone."""


class Method(Protocol):
    """Forward gives the output and what the backward pass needs; both hold no autograd graph."""

    def forward(self, call: Call, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """q: [T, H, D]; k, v: [T, H_kv, D]. Output [T, H, D]."""

    def backward(self, call: Call, d_out: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk, dv in the accumulation type."""


class Attend(torch.autograd.Function):
    """Autograd around a method."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, method: Method, call: Call) -> Tensor:
        """See `Method`."""
        out, saved = method.forward(call, q, k, v)
        ctx.save_for_backward(*saved)
        ctx.method, ctx.call, ctx.dtype = method, call, q.dtype
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]  # torch leaves its decorator untyped
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        """See `Method`."""
        gradients = ctx.method.backward(ctx.call, d_out.contiguous(), *ctx.saved_tensors)
        return (*(gradient.to(ctx.dtype) for gradient in gradients), None, None)


class Local:
    """The rank holds its samples whole."""

    def forward(self, call: Call, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See `Method`."""
        answer = Answer.empty(q)
        call.kernel.forward(answer, q, k, v, local_tasks(call.lengths), call.pattern, call.scale)
        out = answer.out.to(q.dtype)
        return out, (q, k, v, out, answer.lse)

    def backward(self, call: Call, d_out: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `Method`."""
        q, k, v, out, lse = saved
        gradients = _zeros(q), _zeros(k), _zeros(v)
        tasks = local_tasks(call.lengths)
        call.kernel.backward(gradients, (d_out, out, lse), (q, k, v), tasks, call.pattern, call.scale)
        return gradients


class AllGather:
    """Every rank gathers all keys and values and answers its own queries.

    One exchange of keys and values each way, whatever the degree; holds the whole group's keys and values
    (the way of Llama 3, arXiv 2407.21783: small beside the queries' work under grouped-query attention).
    """

    def forward(self, call: Call, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See `Method`."""
        peers = _peers(call)
        # [size, T, 2, H_kv, D] -> [N, 2, H_kv, D] true tokens of all samples, in their own order
        gathered = peers.all_gather(torch.stack([k, v], dim=1)).flatten(0, 1)
        whole = gathered.index_select(0, _order(call.lengths, q.shape[0], q.device))
        answer = Answer.empty(q)
        tasks = gathered_tasks(call.lengths, peers.rank, call.pattern)
        call.kernel.forward(answer, q, whole[:, 0], whole[:, 1], tasks, call.pattern, call.scale)
        out = answer.out.to(q.dtype)
        return out, (q, whole, out, answer.lse)

    def backward(self, call: Call, d_out: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `Method`."""
        peers = _peers(call)
        q, whole, out, lse = saved
        dq, d_whole = _zeros(q), _zeros(whole)
        gradients = dq, d_whole[:, 0], d_whole[:, 1]
        inputs = q, whole[:, 0], whole[:, 1]
        tasks = gathered_tasks(call.lengths, peers.rank, call.pattern)
        call.kernel.backward(gradients, (d_out, out, lse), inputs, tasks, call.pattern, call.scale)
        rows = q.shape[0]
        parts = d_whole.new_zeros(peers.size * rows, *d_whole.shape[1:])
        parts.index_copy_(0, _order(call.lengths, rows, q.device), d_whole)
        dk, dv = peers.reduce_scatter(parts.unflatten(0, (peers.size, rows))).unbind(1)
        return dq, dk, dv


class Ring:
    """Keys and values travel round the group while each rank works on those it has.

    Holds two ranks' keys and values at a time, the ones at work and the ones arriving. Backward sends them
    round again with their gradients behind them, one step later, so both messages fly during work
    (Liu, Zaharia and Abbeel, arXiv 2310.01889).
    """

    def forward(self, call: Call, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See `Method`."""
        peers = _peers(call)
        answer = Answer.empty(q)
        now = torch.stack([k, v])
        buffers = [torch.empty_like(now), torch.empty_like(now)]
        for step in range(peers.size):
            source = (peers.rank - step) % peers.size
            arriving = peers.shift(now, buffers[step % 2]) if step + 1 < peers.size else None
            tasks = ring_tasks(call.lengths, peers.rank, source, call.pattern)
            call.kernel.forward(answer, q, now[0], now[1], tasks, call.pattern, call.scale)
            now = arriving.wait() if arriving else now
        out = answer.out.to(q.dtype)
        return out, (q, k, v, out, answer.lse)

    def backward(self, call: Call, d_out: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `Method`."""
        peers = _peers(call)
        q, k, v, out, lse = saved
        now = torch.stack([k, v])
        buffers = [torch.empty_like(now), torch.empty_like(now)]
        dq = _zeros(q)
        behind = None
        for step in range(peers.size):
            source = (peers.rank - step) % peers.size
            arriving = peers.shift(now, buffers[step % 2]) if step + 1 < peers.size else None
            share = _zeros(now)
            tasks = ring_tasks(call.lengths, peers.rank, source, call.pattern)
            gradients = dq, share[0], share[1]
            inputs = q, now[0], now[1]
            call.kernel.backward(gradients, (d_out, out, lse), inputs, tasks, call.pattern, call.scale)
            if behind is not None:
                share += behind.wait()
            behind = peers.shift(share, torch.empty_like(share), tag=1)
            now = arriving.wait() if arriving else now
        assert behind is not None
        dk, dv = behind.wait()  # after as many hops as members they are home
        return dq, dk, dv


class Ulysses:
    """Ranks exchange tokens for heads, attend to whole samples with their share of heads, and exchange back.

    Moves queries and outputs too, but each only once, so its volume falls with the degree (Jacobs et al.,
    arXiv 2309.14509). Key heads fewer than the group's ranks are repeated.
    """

    def forward(self, call: Call, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See `Method`."""
        peers = _peers(call)
        size, rows, heads = peers.size, q.shape[0], q.shape[1] // peers.size
        repeats = _key_repeats(q.shape[1], k.shape[1], size)
        k, v = (x.repeat_interleave(repeats, dim=1) for x in (k, v))
        shares = [x.unflatten(1, (size, -1)) for x in (q, k, v)]
        # [T, size, heads, D] -> [size, T, heads, D] -> true tokens [N, heads, D]
        arrived = peers.all_to_all(torch.cat(shares, dim=2).transpose(0, 1)).flatten(0, 1)
        whole = arrived.index_select(0, _order(call.lengths, rows, q.device))
        inputs = _split_heads(whole, heads)
        answer = Answer.empty(inputs[0])
        call.kernel.forward(answer, *inputs, local_tasks(_alone(call.lengths)), call.pattern, call.scale)
        out_whole = answer.out.to(q.dtype)
        out = self._send_back(call, out_whole, rows)
        return out, (whole, out_whole, answer.lse, torch.tensor([heads, repeats, rows]))

    def backward(self, call: Call, d_out: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `Method`."""
        peers = _peers(call)
        whole, out_whole, lse, shape = saved
        heads, repeats, rows = shape.tolist()
        arrived = peers.all_to_all(d_out.unflatten(1, (peers.size, heads)).transpose(0, 1)).flatten(0, 1)
        d_out_whole = arrived.index_select(0, _order(call.lengths, rows, d_out.device))
        d_whole = _zeros(whole)
        call.kernel.backward(
            _split_heads(d_whole, heads),
            (d_out_whole, out_whole, lse),
            _split_heads(whole, heads),
            local_tasks(_alone(call.lengths)),
            call.pattern,
            call.scale,
        )
        back = self._send_back(call, d_whole, rows).unflatten(1, (peers.size, -1))
        dq, dk, dv = (x.flatten(1, 2) for x in back.split(_head_split(back.shape[2], heads), dim=2))
        return dq, *(x.unflatten(1, (-1, repeats)).sum(2) for x in (dk, dv))

    @staticmethod
    def _send_back(call: Call, whole: Tensor, rows: int) -> Tensor:
        """whole: [N, heads, D] some heads of all true tokens. [rows, size * heads, D] all heads of ours."""
        peers = _peers(call)
        parts = whole.new_zeros(peers.size * rows, *whole.shape[1:])
        parts.index_copy_(0, _order(call.lengths, rows, whole.device), whole)
        return peers.all_to_all(parts.unflatten(0, (peers.size, rows))).transpose(0, 1).flatten(1, 2)


def _key_repeats(heads: int, key_heads: int, size: int) -> int:
    """How often each key head is repeated so that every rank has the keys of its query heads."""
    if heads % size:
        raise ValueError(
            f"ulysses needs the query heads to divide by the degree, got {heads} heads on {size} ranks. "
            "Use method='ring' or 'all_gather'."
        )
    if key_heads % size == 0:
        return 1
    return size // key_heads if size % key_heads == 0 else heads // key_heads


def _head_split(heads: int, query_heads: int) -> list[int]:
    key_heads = (heads - query_heads) // 2
    return [query_heads, key_heads, key_heads]


def _split_heads(whole: Tensor, query_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """[N, heads, D] -> views of queries, keys and values."""
    q, k, v = whole.split(_head_split(whole.shape[1], query_heads), dim=1)
    return q, k, v


def _alone(lengths: Lengths) -> Lengths:
    return Lengths(lengths.data, 1)


@lru_cache(maxsize=64)
def _order(lengths: Lengths, rows: int, device: torch.device) -> Tensor:
    return torch.from_numpy(natural_order(lengths, rows)).to(device)


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros(like.shape, dtype=accumulation_type(like.dtype), device=like.device)


def _peers(call: Call) -> Peers:
    assert call.peers is not None
    return call.peers


METHODS: dict[str, Method] = {
    "local": Local(),
    "all_gather": AllGather(),
    "ring": Ring(),
    "ulysses": Ulysses(),
}
