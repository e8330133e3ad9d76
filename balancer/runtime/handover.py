"""Encoder outputs of a step, made on other ranks than those that read them in several micro-batches."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from balancer.exchange import ExchangeTable

from .exchange import exchange


class Handover:
    """Rows received once a step; each micro-batch reads its own, and their gradients go back together.

    Args:
        rows: [N, ...] outputs of all encoder micro-batches of this rank, one after another.
        table: where they go, equal on all ranks.
        group: process group; ``None``: the default one.

    Collective, here and in `backward`: all ranks must make one and send its gradients back.
    """

    def __init__(self, rows: Tensor, table: ExchangeTable, group: Any = None) -> None:
        self._arrived = exchange(rows, table, group)
        self._read = self._arrived.detach().requires_grad_(self._arrived.requires_grad)

    def rows(self, span: slice) -> Tensor:
        """What a micro-batch reads: ``batch.feature_rows[kind]``."""
        return self._read[span]

    def backward(self) -> None:
        """After the step's last micro-batch: gradients of what was read, back to the encoder that made it."""
        gradient = self._read.grad
        self._arrived.backward(self._read.new_zeros(self._read.shape) if gradient is None else gradient)
