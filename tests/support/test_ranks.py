"""The helper for real ranks tells values, errors, deaths and silence apart."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from tests.support.ranks import RankFailed, run_ranks, run_ranks_anyway


def add_up(rank, start):
    total = torch.tensor([start + rank])
    dist.all_reduce(total)
    return rank, dist.get_world_size(), int(total)


def fail_each_in_its_way(rank):
    dist.barrier()
    time.sleep(0.5)  # all have left the barrier before anybody goes
    if rank == 0:
        raise ValueError("rank zero's own words")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def raise_on_one_while_the_other_waits(rank):
    if rank == 1:
        raise ValueError("one is out")
    dist.barrier()


def test_values_come_back_in_rank_order():
    assert run_ranks(add_up, 3, 10) == [(0, 3, 33), (1, 3, 33), (2, 3, 33)]


def test_errors_deaths_and_silence_are_told_apart():
    raised, killed, silent = run_ranks_anyway(fail_each_in_its_way, 3, timeout_s=5)
    assert "rank zero's own words" in raised.error
    assert killed.error is None
    assert killed.exitcode == -signal.SIGKILL
    assert "no answer" in silent.error


def test_a_failing_rank_ends_the_call_early_with_its_words():
    begin = time.monotonic()
    with pytest.raises(RankFailed, match="one is out"):
        run_ranks(raise_on_one_while_the_other_waits, 2, timeout_s=60)
    assert time.monotonic() - begin < 30
