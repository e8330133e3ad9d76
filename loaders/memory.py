"""How many tokens a rank can hold in one micro-batch, by the bytes of their logits and activations."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

logger = logging.getLogger(__name__)

LOGIT_BYTES = 10
"""Bytes of one logit: 2 as the model gives it in bfloat16, 4 as float32 copy for the loss, 4 of gradient."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes that a rank has for what grows with its micro-batch's tokens.

    T tokens take ``T * (token_bytes + vocab_size * logit_bytes)`` bytes. A rank that shares sequences counts
    its own shard's tokens.

    Raises:
        ValueError: values out of range, or nothing that takes memory.
    """

    budget_bytes: int
    """For activations and logits of one micro-batch; without parameters, gradients and optimizer states."""
    vocab_size: int = 0
    """Logits of each token; 0 where the loss never holds them all (fused or chunked cross-entropy)."""
    logit_bytes: float = LOGIT_BYTES
    """Bytes for each of them at the peak; see `LOGIT_BYTES`."""
    token_bytes: float = 0.0
    """Bytes of activations that each token keeps for the backward pass; 0: the budget is for logits alone."""

    def __post_init__(self) -> None:
        for name in ("budget_bytes", "vocab_size", "logit_bytes", "token_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not value >= 0:
                raise ValueError(f"Memory.{name} must be a number of at least 0, got {value!r}.")
        if not self.bytes_per_token > 0:
            raise ValueError("Memory needs vocab_size= or token_bytes=: otherwise tokens take no memory.")
        if self.tokens < 1:
            raise ValueError(
                f"Memory: budget_bytes={self.budget_bytes} does not hold one token, which takes "
                f"{self.bytes_per_token:.0f} bytes. Raise the budget, or use a loss that does not hold all "
                "logits and leave vocab_size out."
            )

    @property
    def bytes_per_token(self) -> float:
        """Bytes that a token takes."""
        return self.token_bytes + self.vocab_size * self.logit_bytes

    @property
    def tokens(self) -> int:
        """Tokens that fit."""
        return int(self.budget_bytes // self.bytes_per_token)

    def lowered(self, max_tokens: int) -> int:
        """``max_tokens``, or what fits where that is less; a log line then says so."""
        if self.tokens >= max_tokens:
            return max_tokens
        logger.info(
            "max_tokens is lowered from %d to %d: a token takes %.0f of %d bytes",
            max_tokens,
            self.tokens,
            self.bytes_per_token,
            self.budget_bytes,
        )
        return self.tokens

    def check_pads(self, pad_to: Sequence[int]) -> None:
        """Raises ValueError where batches would be padded to more than fits."""
        too_large = [size for size in pad_to if size > self.tokens]
        if too_large:
            raise ValueError(
                f"pad_to={too_large[0]} pads batches to more tokens than fit: {self.tokens}, at "
                f"{self.bytes_per_token:.0f} bytes each in {self.budget_bytes}. Leave such sizes out and set "
                f"max_tokens to at most {self.tokens}, or raise the budget."
            )
