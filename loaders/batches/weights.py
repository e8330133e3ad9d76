"""The step's loss weights where metadata does not hold them: counted from the labels, two messages a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from balancer.runtime import process_rank
from balancer.runtime.agreement import all_gather_int
from loaders.batches.batch import Batch
from loaders.batches.labels import IGNORED
from loaders.batches.shares import LANGUAGE

UNKNOWN = -(1 << 40)
"""Outweighs the samples of any step."""


def count_labels(step: Sequence[Batch], ranks: int) -> Sequence[Batch]:
    """Set ``step_loss_tokens`` and ``step_samples`` of one rank's batches of a step to what all ranks have.

    Collective where there are several ranks: twice 8 bytes from each, in every step, on all ranks.

    Raises:
        RuntimeError: ranks that are only played here, whose labels cannot be asked for.
    """
    counted = sum(batch.num_loss_tokens for batch in step)
    samples = sum(_samples_with_labels(batch) for batch in step)
    if ranks > 1:
        counted, samples = (_over_all_ranks(step, value, ranks) for value in (counted, samples))
    for batch in step:
        batch.place = batch.place.with_(step_loss_tokens=counted, step_samples=max(samples, -1))
    return step


def _samples_with_labels(batch: Batch) -> int:
    """Samples and pieces of a micro-batch that have labels.

    Where a rank does not see them whole (shared sequences, a ``collate_fn`` of the user's) that is not known,
    and a number comes that makes the step's sum negative.
    """
    if batch.place.is_dummy or batch.phase != LANGUAGE:
        return 0
    if batch.cp_degree > 1 or "shift_labels" not in batch:
        return UNKNOWN
    counts = np.add.reduceat(
        batch["shift_labels"][0].cpu().numpy() != IGNORED, np.cumsum([0, *batch.seq_lengths[:-1]])
    )
    return int(np.count_nonzero(counts[: len(batch.sample_ids)]))


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
