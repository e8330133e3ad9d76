"""What the runtime asks of a batch. ``loaders.Batch`` has all of it; any object with these names will do."""

from __future__ import annotations

from typing import Any, Protocol


class RunnableBatch(Protocol):
    """One rank's share of one micro-batch."""

    step: int
    """Optimizer step, counted from 0, going on over epochs."""
    slot: int
    """Place of the micro-batch in this rank's list of the step."""
    last_in_step: bool
    """Whether gradients meet after this micro-batch."""
    cp_degree: int
    """Ranks that share the micro-batch's sequences."""
    cp_rank: int
    """This rank's place among them."""
    cp_group: Any
    """Their process group, or a `peers.RingGroup` inside a larger one; ``None`` where ``cp_degree == 1``."""
    seq_lengths: Any
    """int32[n] True tokens of each sample of the whole micro-batch, before sharding and padding."""
    num_loss_tokens: int
    """Labels of this rank's shard that count in the loss."""
    step_loss_tokens: int
    """The same, summed over all ranks and micro-batches of the step."""
    num_ranks: int
    """Data ranks of the job: what averaging wrappers divide by."""
