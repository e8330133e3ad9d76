"""Ranks that disagree are named, instead of hanging in a collective."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from balancer.plan import StepPlan
from packing.table import SampleTable


def check_same_plan(
    plan: StepPlan, group: Any = None, *, step: int | None = None, table: SampleTable | None = None
) -> None:
    """Compare all ranks' plans of a step by their 64-bit digests: one all-gather of 8 bytes.

    Args:
        plan: this rank's plan.
        group: process group of all ranks that run the step; None: the default one.
        step: number of the step, for the message.
        table: the step's samples. A plan numbers samples within its step, so steps of other samples of the
            same lengths have equal plans; with the table they differ.

    Raises:
        RuntimeError: on every rank, naming the ranks whose plan differs from the most common one (from
            the lowest rank's on a tie); or a plan for several ranks without a process group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        if plan.ranks > 1:
            raise RuntimeError(
                f"a plan for {plan.ranks} ranks needs torch.distributed to compare it: call "
                "init_process_group first, or plan for one rank."
            )
        return
    digest = plan.digest() if table is None else plan.digest() ^ _digest_of(table)
    digests = all_gather_int(_signed(digest), group)
    common = Counter(digests).most_common()
    usual = next(digest for digest in digests if common[0][1] == digests.count(digest))
    if len(common) == 1:
        return
    differing = [rank for rank, digest in enumerate(digests) if digest != usual]
    where = "" if step is None else f"step {step}: "
    raise RuntimeError(
        f"{where}ranks {differing} built another plan than rank {digests.index(usual)}. "
        "Check that seed, sample table, topology and cost are equal on all ranks."
    )


def all_gather_int(value: int, group: Any = None) -> list[int]:
    """Every rank's 64-bit ``value``, in rank order."""
    return [values[0] for values in all_gather_ints([value], group)]


def all_gather_ints(values: Sequence[int], group: Any = None) -> list[list[int]]:
    """Every rank's 64-bit ``values``, equally many on all ranks, in rank order."""
    mine = torch.tensor(values, dtype=torch.int64, device=device_of(group))
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, mine, group=group)
    return [list(map(int, of_rank)) for of_rank in torch.stack(gathered).tolist()]


def device_of(group: Any = None) -> torch.device:
    """Where tensors must lie for collectives of ``group``: NCCL moves only those on a GPU."""
    if "nccl" in dist.get_backend(group):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _digest_of(table: SampleTable) -> int:
    """64 bits that follow from which samples the table holds, in order."""
    hasher = hashlib.blake2b(digest_size=8)
    for column in (table.source, table.row, table.start, table.num_tokens):
        hasher.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
    return int.from_bytes(hasher.digest(), "little")


def _signed(unsigned: int) -> int:
    """The same 64 bits as a two's complement number, since collectives carry no uint64."""
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned
