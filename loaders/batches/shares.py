"""One rank's part of a step's plan, before any payload is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.plan import StepPlan
from loaders.media.presence import Fillers
from packing._rows import int_sum
from packing.table import SampleTable

LANGUAGE = "language"
"""The phase of batches that are read with everything that belongs to them."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Share:
    """Work order of one batch, sent to the worker that reads it. Axis: N = samples or pieces."""

    step: int
    slot: int
    last_in_step: bool
    cp_degree: int
    cp_rank: int
    first_rank: int
    num_ranks: int
    step_loss_tokens: int
    source: NDArray[np.int32]
    """[N] Number of each sample's source."""
    row: NDArray[np.int64]
    """[N] Row within the source."""
    start: NDArray[np.int64]
    """[N] First token of the piece within its row."""
    num_tokens: NDArray[np.int64]
    """[N] Tokens of the piece."""
    num_loss_tokens: NDArray[np.int64]
    """[N] Labels of the piece that count in the loss."""
    step_samples: int = -1
    """Samples and pieces of the step that have labels; -1 where that is not known."""
    phase: str = LANGUAGE
    """The part of the model that runs on it."""
    last_in_phase: bool = False
    """Whether it is the rank's last of an encoder in the step."""
    pad_to: int = 0
    """Tokens that the batch is padded to; 0: as its reader does it."""
    fillers: tuple[str, ...] = ()
    """Kinds of media that are added because other ranks have some, each as a sequence of its own."""

    def __len__(self) -> int:
        return int(self.row.size)


def shares_of_rank(
    plan: StepPlan,
    table: SampleTable,
    *,
    rank: int,
    step: int,
    fillers: Fillers | None = None,
    every_slot: bool = False,
    pad_slots: bool = False,
    step_samples: int = -1,
) -> list[Share]:
    """What ``rank`` reads of a step, in order; at least one share, the last of them marked.

    Under ``sync="micro_batch"``, and with ``every_slot``, there is one for each slot, empty where the plan
    has nothing for the rank, so that all ranks run equally many. With ``pad_slots`` all batches of a slot
    are padded to its largest.
    """
    batches = plan.micro_batches
    if plan.ranks == 1:  # all are its own, in slot order
        mine = dict(zip(batches.slot.tolist(), range(len(batches)), strict=True))
    else:
        mine = {int(batches.slot[m]): int(m) for m in plan.for_rank(rank)}
    all_slots = every_slot or plan.sync == "micro_batch"
    slots = list(range(plan.num_slots) if all_slots else sorted(mine)) or [0]
    step_loss_tokens = int_sum(table.num_loss_tokens)
    width = np.zeros(plan.num_slots if pad_slots else 0, np.int64)
    if pad_slots:
        np.maximum.at(width, batches.slot, batches.tokens // batches.cp_degree)
    shares = []
    for slot in slots:
        m = mine.get(slot)
        index = np.zeros(0, np.int64) if m is None else batches.samples(m)
        first_rank = rank if m is None else int(batches.first_rank[m])
        shares.append(
            Share(
                step=step,
                slot=slot,
                last_in_step=slot == slots[-1],
                cp_degree=1 if m is None else int(batches.cp_degree[m]),
                cp_rank=rank - first_rank,
                first_rank=first_rank,
                num_ranks=plan.ranks,
                step_loss_tokens=step_loss_tokens,
                source=table.source[index],
                row=table.row[index],
                start=table.start[index],
                num_tokens=table.num_tokens[index],
                num_loss_tokens=table.num_loss_tokens[index],
                step_samples=step_samples,
                pad_to=int(width[slot]) if pad_slots else 0,
                fillers=() if fillers is None else fillers.of(first_rank, slot),
            )
        )
    return shares
