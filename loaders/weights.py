"""The step's loss weight where metadata does not hold it: counted from the labels, one message a step."""

from __future__ import annotations

from collections.abc import Sequence

from balancer.runtime import process_rank
from balancer.runtime.agreement import all_gather_int
from loaders.batch import Batch


def count_labels(step: Sequence[Batch], ranks: int) -> Sequence[Batch]:
    """Set ``step_loss_tokens`` of one rank's batches of a step to what all ranks' labels sum to.

    Collective where there are several ranks: 8 bytes from each, in every step, on all ranks.

    Raises:
        RuntimeError: ranks that are only played here, whose labels cannot be asked for.
    """
    counted = sum(batch.num_loss_tokens for batch in step)
    if ranks > 1:
        counted = _over_all_ranks(step, counted, ranks)
    for batch in step:
        batch.step_loss_tokens = counted
    return step


def _over_all_ranks(step: Sequence[Batch], counted: int, ranks: int) -> int:
    process = process_rank()
    if process is not None and process[1] == ranks:
        return sum(all_gather_int(counted))
    raise RuntimeError(
        f"step {step[0].step}: the labels of {ranks} data ranks must be counted, since lengths were given "
        "and say nothing of masked labels, but torch.distributed has no group of exactly these ranks. Leave "
        "length= out so that labels are counted once beforehand, or pass labels=False to open_source for "
        "plain text."
    )
