"""A rank that dies, fails or lags is named on all the others."""

import logging
import os
import signal
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from balancer import runtime
from balancer.runtime.members import default_store
from balancer.runtime.watch import Mark
from tests.runtime.batches import PlainBatch
from tests.support.ranks import run_ranks, run_ranks_anyway

# ------------------------------------------------------------------------------------- turn by turn, by hand

NOW_S = 10_000.0


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch):
    """In this process: ranks are others. However slow the machine, who has stood for 61 s has for 61 s."""
    still = SimpleNamespace(monotonic=lambda: NOW_S, sleep=time.sleep)
    monkeypatch.setattr("balancer.runtime.watch.time", still)


def watches(ranks, *, silent=(), **limits):
    """Watches of all ranks on one store, whose turns the test takes; the silent ones never begin."""
    limits = {"limit_s": 600.0, "silence_s": 30.0, "interval_s": 2.0} | limits
    store, made = dist.HashStore(), [runtime.Watch(**limits) for _ in range(ranks)]
    for rank, watch in enumerate(made):
        watch._begin(rank, ranks, dist.PrefixStore("watch", store))
        if rank not in silent:
            watch._tell()
    return made


def come_to(watch, step, slot=0, *, last=True, finished=False, stood_s=0.0):
    """The watch's rank has come to a place, some time ago, and has told so."""
    watch._place = Mark(step, last, slot, finished), NOW_S - stood_s
    watch._tell()


def verdict_after(watch, turns, others=()):
    """The watch's verdict within a number of its turns, between which others take theirs."""
    for _ in range(turns):
        watch._turn()
        if watch._verdict:
            break
        for other in others:
            other._turn()
    return watch._verdict


def test_a_rank_that_falls_silent_is_gone_after_so_many_turns_and_all_hear_of_it():
    first, second, third = watches(3)
    come_to(second, 4, 1)
    assert verdict_after(first, 16, [third]) is None  # one hears the sign, 15 turns of 2 s do not exceed 30 s
    assert verdict_after(first, 1) == "rank 1 is gone: last seen in step 4, slot 1"
    assert verdict_after(third, 1) == first._verdict


def test_a_rank_that_has_not_begun_yet_is_given_the_time_of_a_laggard():
    first, _ = watches(2, silent=[1], limit_s=100.0)
    assert verdict_after(first, 50) is None
    assert verdict_after(first, 1) == "rank 1 is gone: it has never been seen"


def test_a_rank_that_comes_late_is_heard():
    first, second = watches(2, silent=[1])
    assert verdict_after(first, 100) is None
    second._tell()
    assert verdict_after(first, 50, [second]) is None


def test_who_listened_to_a_rank_that_ended_listens_to_the_next():
    first, second, third, _ = watches(4)
    come_to(third, 7, 2)
    second.__exit__(None, None, None)
    assert verdict_after(first, 16) is None
    assert verdict_after(first, 1) == "rank 2 is gone: last seen in step 7, slot 2"


def test_the_last_one_at_work_listens_to_nobody():
    first, second, third = watches(3)
    for other in (second, third):
        other.__exit__(None, None, None)
    assert verdict_after(first, 100) is None


def test_all_that_stand_farthest_behind_are_named_by_one_that_waits():
    first, second, third, fourth = everyone = watches(4, limit_s=60.0)
    come_to(first, 3, stood_s=61.0)
    come_to(second, 2, finished=True, stood_s=62.0)
    come_to(third, 2, finished=True, stood_s=70.0)
    come_to(fourth, 3, stood_s=10.0)
    # those behind judge nobody, nor does one that has not waited long enough
    assert [verdict_after(watch, 1) for watch in (second, third, fourth)] == [None] * 3
    told = "ranks [1, 2] lag: behind step 2, slot 0 while others are in step 3, slot 0 for 61 s"
    assert verdict_after(first, 1) == told
    assert [verdict_after(watch, 1) for watch in everyone] == [told] * 4


def test_a_rank_that_moves_does_not_lag_however_far_it_is_behind():
    first, second, third = watches(3, limit_s=60.0)
    come_to(first, 3, 0, stood_s=100.0)
    for slot in range(5):
        come_to(second, 3, slot, last=False, stood_s=50.0)
        come_to(third, 3, slot, last=False, stood_s=55.0)
        assert verdict_after(first, 1) is None
    come_to(third, 3, 4, last=False, stood_s=61.0)
    assert verdict_after(first, 1).startswith("ranks [2] lag: in step 3, slot 4 while others are in step 3")


def test_ranks_at_the_same_place_are_in_a_long_step():
    everyone = watches(3, limit_s=60.0)
    for watch in everyone:
        come_to(watch, 5, stood_s=1000.0)
    assert [verdict_after(watch, 1) for watch in everyone] == [None] * 3


def test_a_rank_that_has_not_begun_is_what_those_in_the_first_step_wait_for():
    first, second, _ = watches(3, silent=[2], limit_s=60.0)
    for watch in (first, second):
        come_to(watch, 0, stood_s=70.0)
    told = "ranks [2] lag: before its first micro-batch while others are in step 0, slot 0 for 70 s"
    assert verdict_after(first, 1) == told


def test_a_rank_that_ended_before_the_others_is_said_to_have_left():
    first, second, third = watches(3, limit_s=60.0)
    come_to(second, 2, finished=True)
    second.__exit__(None, None, None)
    for watch in (first, third):
        come_to(watch, 3, stood_s=61.0)
    told = "ranks [1] have left: behind step 2, slot 0 while others are in step 3, slot 0 for 61 s"
    assert verdict_after(first, 1, [third]) == told


def test_the_first_verdict_stands():
    first, second = watches(2)
    first._judge("one thing")
    second._judge("another")
    assert (first._verdict, second._verdict) == ("one thing", "one thing")


def test_an_error_between_micro_batches_is_told_too():
    first, second = watches(2)
    come_to(second, 3, 1, finished=True)
    second.__exit__(ValueError, ValueError("a bad row"), None)
    assert verdict_after(first, 1) == "rank 1 failed behind step 3, slot 1: ValueError: a bad row"


def test_the_error_of_a_lost_peer_is_no_failure_of_the_rank_that_hears_it():
    first, second = watches(2)
    outer = RuntimeError("something else")
    outer.__cause__ = dist.DistNetworkError("no bytes")
    for error in (RuntimeError("[gloo/transport] closed"), dist.DistBackendError("x"), outer):
        second.__exit__(type(error), error, None)
    assert verdict_after(first, 1) is None


class Gone:
    """A store whose process has ended."""

    def __getattr__(self, name):
        raise dist.DistNetworkError("nobody there")


def test_a_store_that_goes_with_its_rank_is_told_once_something_is_asked_of_that_rank(caplog):
    watch = runtime.Watch(interval_s=0.01)
    watch._begin(1, 2, Gone())
    come = Mark(3, True, 0, False)
    waited = []

    def wait(seconds):  # between micro-batches for three turns
        waited.append(seconds)
        if len(waited) == 3:
            watch._set(come)
        return False

    watch._set(Mark(2, True, 0, True))
    watch._look_after(SimpleNamespace(wait=wait))
    assert len(waited) == 3
    told = "the job's store no longer answers (nobody there); the rank that holds it is gone"
    assert watch._verdict == told
    said = [record for record in caplog.records if record.name == "balancer.runtime.watch"]
    assert [(record.levelname, record.getMessage()) for record in said] == [
        ("WARNING", f"rank 1 is not watched any more: {told}"),
        ("ERROR", f"rank 1: {told}"),
    ]


def test_a_store_that_goes_at_the_end_is_no_trouble(caplog):
    watch = runtime.Watch()
    watch._begin(1, 2, Gone())
    watch._set(Mark(2, True, 0, True))
    watch.__exit__(None, None, None)
    watch._lose_store(dist.DistNetworkError("nobody there"), watch._stop)
    assert watch._verdict is None
    said = [record for record in caplog.records if record.name == "balancer.runtime.watch"]
    assert not [record for record in said if record.levelno >= logging.ERROR]


def test_limits_that_are_none_get_a_sentence():
    with pytest.raises(ValueError, match="interval_s must lie between 0 and silence_s"):
        runtime.Watch(silence_s=2.0, interval_s=2.0)
    with pytest.raises(ValueError, match="limit_s must be above 0"):
        runtime.Watch(limit_s=0)


def test_one_process_alone_is_not_watched():
    with runtime.Watch() as watch:
        with watch.micro_batch(PlainBatch()):
            pass
        assert watch._thread is None
        with pytest.raises(RuntimeError, match="gloo of one's own"), watch.micro_batch(PlainBatch()):
            raise RuntimeError("gloo of one's own")


# ------------------------------------------------------------------------------------------- on real ranks

RANKS = 3
AMPLE_S = 300.0
"""Never waited for where all is right. Nothing here goes by how fast a rank is: one may stop anywhere."""


def train(rank, trouble):
    """Steps with an all-reduce each, until rank 1 gets into trouble in step 2."""
    store = default_store()
    # each neighbour speaks more often than it is listened to: that it lives must not hide that one lags
    interval_s = (0.2, 0.1, 0.4)[rank]
    silence_s = 2.0 if trouble == "lag unnoticed" else AMPLE_S
    try:
        with runtime.Watch(AMPLE_S, silence_s, interval_s) as watch:
            if trouble == "lag unnoticed":
                watch._neighbour = rank  # nobody is taken for dead while he is only slow
            for step in range(4):
                for slot in range(2):
                    with watch.micro_batch(PlainBatch(step=step, slot=slot, last_in_step=slot == 1)):
                        if (step, slot) == (2, 1):
                            stumble(rank, trouble, watch, store)
                        if trouble.startswith("lag") and (step, slot) == (2, 0) and rank != 1:
                            get_ahead(watch, store)
                            watch.limit_s = 1.5 if trouble == "lag" else AMPLE_S
                        meet = dist.all_reduce(torch.ones(4), async_op=True)
                        if trouble == "lag unnoticed" and (step, slot) == (2, 0) and rank != 1:
                            meet.wait(timedelta(seconds=2))  # gives up long before limit_s
                        meet.wait()
                    if (rank, step, slot) == (1, 1, 1):
                        fall_behind(trouble, watch, store)
    except RuntimeError:
        store.set(f"told/{rank}", "1")
        raise
    return "done"


def say(watch, words):
    """Wait until the rank's own words have told where it is."""
    while words not in watch._read(f"life/{watch.rank}"):
        time.sleep(0.01)


def meet_in_store(store, rank, place, ranks=range(RANKS)):
    """Wait until all have come to a place, without a collective that the death of one would break."""
    store.set(f"{place}/{rank}", "1")
    store.wait([f"{place}/{other}" for other in ranks], timedelta(seconds=AMPLE_S))


def get_ahead(watch, store):
    """Until ranks 0 and 2 have told that they are in step 2, and rank 1 that it is not: waiting may count."""
    say(watch, "[2, false, 0, false")
    meet_in_store(store, watch.rank, "ahead")


def stumble(rank, trouble, watch, store):
    if trouble == "kill":
        say(watch, "[2, true, 1, false")
        meet_in_store(store, rank, "before the end")
        if rank == 1:
            # in the midst of its word it would leave half a record in the file, which only jobs' stores bear
            watch._stop.set()
            watch._thread.join()
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0:  # who listens to rank 1; rank 2 waits for what it will say
            watch.silence_s = 1.0
            while not watch._verdict:
                time.sleep(0.01)
    if trouble == "fail" and rank == 1:
        raise ValueError("this rank's own mistake")


def fall_behind(trouble, watch, store):
    if trouble.startswith("lag"):
        say(watch, "[1, true, 1, true")
        store.set("ahead/1", "1")
    if trouble == "lag":
        while not watch._verdict:  # which the others find while they wait
            time.sleep(0.01)
        os._exit(0)
    if trouble == "lag unnoticed":
        store.wait(["told/0", "told/2"], timedelta(seconds=AMPLE_S))


LAGS = "ranks [1] lag: behind step 1, slot 1 while others are in step 2, slot 0"


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("kill", "rank 1 is gone: last seen in step 2, slot 1"),
        ("fail", "rank 1 failed in step 2, slot 1: ValueError: this rank's own mistake"),
        ("lag", LAGS),
        ("lag unnoticed", LAGS),
    ],
    ids=["kill", "fail", "lag", "lag unnoticed"],
)
@pytest.mark.slow
def test_the_others_say_which_rank_it_is(trouble, words):
    outcomes = run_ranks_anyway(train, RANKS, trouble, group_timeout_s=AMPLE_S)
    for rank in (0, 2):
        assert words in outcomes[rank].error, outcomes[rank]
        if trouble == "lag":  # told while the others still waited
            assert float(outcomes[rank].error.partition("slot 0 for ")[2].split()[0]) < AMPLE_S / 2


def twice(rank):
    watch = runtime.Watch(silence_s=AMPLE_S, interval_s=0.05)
    for _ in range(2):
        with watch:
            assert watch._thread.is_alive()
            for step in range(3):
                with watch.micro_batch(PlainBatch(step=step)):
                    dist.all_reduce(torch.ones(4))
            with pytest.raises(RuntimeError, match="is at work already"):
                watch.__enter__()
        assert watch._thread is None
    return watch._verdict


def test_without_trouble_nothing_is_said_and_a_watch_serves_again():
    assert run_ranks(twice, RANKS) == [None] * RANKS


def lose_the_holder(rank):
    with runtime.Watch(silence_s=AMPLE_S, interval_s=0.1) as watch:
        for step in range(3):
            with watch.micro_batch(PlainBatch(step=step)):
                if step == 2:
                    meet_in_store(default_store(), rank, "before the end", [1, 2] if rank == 0 else [rank])
                if (rank, step) == (0, 2):
                    os.kill(os.getpid(), signal.SIGKILL)
                dist.all_reduce(torch.ones(4))


@pytest.mark.slow
def test_the_end_of_the_rank_that_holds_the_store_is_told():
    outcomes = run_ranks_anyway(lose_the_holder, RANKS, tcp=True)
    for outcome in outcomes[1:]:
        assert "the job's store no longer answers" in outcome.error, outcome
        assert "cannot go on in step 2, slot 0" in outcome.error
