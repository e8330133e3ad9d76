"""The helper for real ranks tells values, errors, deaths and silence apart."""

import multiprocessing
import os
import pickle
import signal
import time

import pytest
import torch
import torch.distributed as dist

from tests.support.ranks import RankFailed, _collect, run_ranks, run_ranks_anyway


def add_up(rank, start):
    total = torch.tensor([start + rank])
    dist.all_reduce(total)
    return rank, dist.get_world_size(), int(total)


def fail_each_in_its_way(rank):
    if rank == 0:
        raise ValueError("rank zero's own words")
    os.kill(os.getpid(), signal.SIGKILL)


def raise_on_one_while_the_other_waits(rank):
    if rank == 1:
        raise ValueError("one is out")
    dist.barrier()


def test_values_come_back_in_rank_order():
    assert run_ranks(add_up, 3, 10) == [(0, 3, 33), (1, 3, 33), (2, 3, 33)]


def test_errors_and_deaths_are_told_apart():
    raised, killed = run_ranks_anyway(fail_each_in_its_way, 2)
    assert "rank zero's own words" in raised.error
    assert killed.error is None
    assert killed.exitcode == -signal.SIGKILL


def test_silence_is_told_after_the_time_limit():
    ends = [multiprocessing.Pipe() for _ in range(2)]
    ends[0][1].send_bytes(pickle.dumps((7, None)))
    spoken, silent = _collect([reader for reader, _ in ends], [None, None], 0.0, False)
    assert (spoken.value, spoken.ok) == (7, True)
    assert "no answer within 0 s" in silent.error


def test_a_failing_rank_ends_the_call_early_with_its_words():
    begin = time.monotonic()
    with pytest.raises(RankFailed, match="one is out"):
        run_ranks(raise_on_one_while_the_other_waits, 2, timeout_s=600, group_timeout_s=600)
    assert time.monotonic() - begin < 300
