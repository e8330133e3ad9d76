"""A learning rate that follows tokens, for steps that differ in tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from balancer.runtime.protocol import RunnableBatch


class TokenSchedule:
    """Sets each learning rate to its initial value times ``factor(tokens seen)``, once a step.

    Where steps hold different numbers of tokens, a schedule in steps is another one in tokens; this one is
    right for any number of ranks and any packing, since the count of a step is.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, factor: Callable[[int], float]) -> None:
        self.optimizer, self.factor = optimizer, factor
        self.tokens = 0
        self.initial = [group["lr"] for group in optimizer.param_groups]
        self._apply()

    def step(self, batch: RunnableBatch) -> None:
        """After the optimizer's step, with any micro-batch of it."""
        self.tokens += batch.step_loss_tokens
        self._apply()

    def _apply(self) -> None:
        for group, initial in zip(self.optimizer.param_groups, self.initial, strict=True):
            group["lr"] = initial * self.factor(self.tokens)

    def state_dict(self) -> dict[str, Any]:
        """Tokens seen and initial rates."""
        return {"tokens": self.tokens, "initial": list(self.initial)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.tokens, self.initial = int(state["tokens"]), list(state["initial"])
        self._apply()
