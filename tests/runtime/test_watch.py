"""A rank that dies, fails or lags is named on all the others."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from balancer import runtime
from tests.runtime.batches import PlainBatch
from tests.support.ranks import run_ranks_anyway

RANKS = 3
TIMEOUT_S = 6


def train(rank, trouble):
    """Steps with an all-reduce each, until rank 1 gets into trouble in step 2."""
    limit_s = 1.5 if trouble == "lag" else 60
    # each neighbour speaks more often than it is listened to: that it lives must not hide that one lags
    interval_s = (0.2, 0.1, 0.4)[rank]
    with runtime.Watch(limit_s=limit_s, silence_s=2.5, interval_s=interval_s) as watch:
        for step in range(4):
            for slot in range(2):
                batch = PlainBatch(step=step, slot=slot, last_in_step=slot == 1)
                with watch.micro_batch(batch):
                    if (rank, step, slot) == (1, 2, 1):
                        if trouble == "kill":
                            time.sleep(0.5)  # long enough to have said where it is
                            os.kill(os.getpid(), signal.SIGKILL)
                        elif trouble == "fail":
                            raise ValueError("this rank's own mistake")
                    dist.all_reduce(torch.ones(4))
                if (rank, step, slot) == (1, 1, 1) and trouble in ("lag", "lag-unnoticed"):
                    time.sleep(TIMEOUT_S + 10)  # longer than the others take to give up
    return "done"


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("kill", "rank 1 is gone: last seen in step 2, slot 1"),
        ("fail", "rank 1 failed in step 2, slot 1: ValueError: this rank's own mistake"),
        ("lag", "ranks [1] lag: behind step 1, slot 1 while others are in step 2, slot 0"),
        ("lag-unnoticed", "ranks [1] lag: behind step 1, slot 1 while others are in step 2, slot 0"),
    ],
)
@pytest.mark.slow
def test_the_others_say_which_rank_it_is(trouble, words):
    begin = time.monotonic()
    outcomes = run_ranks_anyway(train, RANKS, trouble, timeout_s=60, group_timeout_s=TIMEOUT_S)
    assert time.monotonic() - begin < TIMEOUT_S + 25
    for rank in (0, 2):
        assert words in outcomes[rank].error, outcomes[rank]
        if trouble == "lag":  # told while the others still waited
            assert float(outcomes[rank].error.partition("slot 0 for ")[2].split()[0]) < TIMEOUT_S


def test_without_trouble_nothing_is_said():
    outcomes = run_ranks_anyway(train, RANKS, "none", timeout_s=60)
    assert [outcome.value for outcome in outcomes] == ["done"] * RANKS
