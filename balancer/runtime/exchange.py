"""Rows of one phase travel to the ranks that need them in the next, and their gradients travel back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from balancer.exchange import ExchangeTable


def exchange(rows: Tensor, table: ExchangeTable, group: Any = None) -> Tensor:
    """Move encoder outputs (or any rows) as the table says: one all-to-all each way, sizes known beforehand.

    Args:
        rows: [N, ...] this rank's rows. A rank without any passes [0, ...] of the others' row shape and type.
        table: the moves, equal on all ranks; ranks are those of ``group``.
        group: process group; None: the default one.

    Returns:
        The rows this rank receives, in the order of the moves; [0, ...] where there are none.

    Every rank of the group must call it, and must reach its backward pass: where nothing received enters the
    loss, `keep_in_graph` ties it in.

    Raises ValueError for a table that asks for rows this rank does not have.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    sent, to_each = table.sent(rank, ranks)
    places, from_each = table.received(rank, ranks)
    if sent.size and int(sent.max()) >= rows.shape[0]:
        raise ValueError(
            f"the exchange table takes row {int(sent.max())} from rank {rank}, which has {rows.shape[0]}. "
            "Its counts must be the encoder's output rows."
        )
    if torch.is_grad_enabled() and not rows.requires_grad and rows.is_floating_point():
        # peers' gradients come back through this rank's backward pass, also if it sent nothing
        rows = rows.detach().requires_grad_()
    device = rows.device
    return _apply(
        rows,
        torch.from_numpy(sent).to(device),
        to_each.tolist(),
        torch.from_numpy(places).to(device),
        from_each.tolist(),
        group,
    )


def keep_in_graph(loss: Tensor, *tensors: Tensor) -> Tensor:
    """``loss``, unchanged, with ``tensors`` in its graph: their backward passes run, with zero gradients."""
    for tensor in tensors:
        # the sum of no rows: 0 also where a sum of all would overflow or meet a NaN
        loss = loss + tensor.unsqueeze(0)[:0].sum().to(loss)
    return loss


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        sent: Tensor,
        to_each: list[int],
        places: Tensor,
        from_each: list[int],
        group: Any,
    ) -> Tensor:
        ctx.save_for_backward(sent, places)
        ctx.splits, ctx.group, ctx.shape = (to_each, from_each), group, rows.shape
        arrived = _all_to_all(rows.index_select(0, sent), to_each, from_each, group)
        return arrived.index_select(0, places)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]  # torch leaves its decorator untyped
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        sent, places = ctx.saved_tensors
        to_each, from_each = ctx.splits
        by_source = torch.empty_like(gradient, memory_format=torch.contiguous_format)
        by_source.index_copy_(0, places, gradient)
        returned = _all_to_all(by_source, from_each, to_each, ctx.group)
        # a row may have gone to several ranks
        of_rows = gradient.new_zeros(ctx.shape).index_add_(0, sent, returned)
        return of_rows, None, None, None, None, None


_apply: Callable[..., Tensor] = _Exchange.apply


def _all_to_all(rows: Tensor, to_each: list[int], from_each: list[int], group: Any) -> Tensor:
    arrived = rows.new_empty(sum(from_each), *rows.shape[1:])
    # a list of unequal tensors (all_to_all) fails on gloo; one tensor with splits does not
    dist.all_to_all_single(arrived, rows.contiguous(), from_each, to_each, group=group)
    return arrived
