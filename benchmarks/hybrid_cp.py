"""What megatron-core's hybrid context parallelism pays for scheduling each step, on a CPU without a network.

Its data loader does this on every rank, every step: takes the sub-samples' lengths out of ``cu_seqlens``,
gathers them, schedules all of them in rounds, cuts the packed batch into sub-samples, works out who sends
which to whom, and lines up what this rank sends. All of that runs as published, on rank 0 of a made-up group,
with one column of tokens. The collectives are stand-ins: gathering writes the lengths straight into the
result, the exchange of payload moves nothing. ``.cuda()`` stays on the CPU, where a lookup in a tensor waits
for no GPU. The forward and backward pass, which asks again how many ranks share each sub-sample, is left out.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

REPEATS = 4


@dataclass(frozen=True)
class Scheduling:
    """Least CPU seconds of a few steps."""

    rounds: list[list[list[int]]]
    """Sample ids of each rank, round after round."""
    step_s: float
    """All that the loader does."""
    schedule_s: float
    """`BalancedCPScheduler.get_groups_and_subsamples` alone."""


def schedule(wrapper: Callable[..., Any], lengths: np.ndarray, ranks: int, cap: int) -> Scheduling:
    """Run the loader's ``__next__`` for a step of equally many samples from each rank.

    wrapper: megatron-core's ``HybridCPDataLoaderWrapper``.
    """
    import torch

    per_rank = lengths.size // ranks
    bounds = np.concatenate([[0], np.cumsum(lengths[:per_rank])])
    batch = {
        "cu_seqlens": torch.tensor(bounds, dtype=torch.int32),
        "tokens": torch.zeros(int(bounds[-1]), dtype=torch.int64),
    }

    def all_gather(out: list[Any], mine: Any, group: Any = None) -> None:
        for rank, slot in enumerate(out):
            if slot.numel() == 1:
                slot.fill_(per_rank)
            else:
                slot.copy_(torch.from_numpy(lengths[rank * per_rank : (rank + 1) * per_rank]))

    group = types.SimpleNamespace(size=lambda: ranks, rank=lambda: 0)
    alone = types.SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    loader = wrapper(
        iter([[batch]] * REPEATS),
        types.SimpleNamespace(max_seqlen_per_dp_cp_rank=cap),
        types.SimpleNamespace(dp_cp=group, dp=group, tp=alone),
    )
    scheduler = loader.cp_balancing_scheduler
    inner, taken = scheduler.get_groups_and_subsamples, []

    def timed(*arguments: Any) -> Any:
        start = time.thread_time()
        result = inner(*arguments)
        taken.append(time.thread_time() - start)
        return result

    scheduler.get_groups_and_subsamples = timed
    steps = []
    threads = torch.get_num_threads()
    # One thread, so that its CPU time is all there is.
    torch.set_num_threads(1)
    with (
        mock.patch.object(torch.Tensor, "cuda", lambda tensor: tensor),
        mock.patch.object(torch.cuda, "current_device", return_value="cpu"),
        mock.patch.multiple(
            torch.distributed,
            all_gather=all_gather,
            all_to_all_single=lambda **_: None,
            get_process_group_ranks=lambda _: list(range(ranks)),
        ),
    ):
        for _ in range(REPEATS):
            start = time.thread_time()
            _, rounds = next(loader)
            steps.append(time.thread_time() - start)
    torch.set_num_threads(threads)
    return Scheduling(rounds=rounds, step_s=min(steps), schedule_s=min(taken))
