"""Run one function on N real gloo ranks.

    results = run_ranks(my_check, 2, argument)          # my_check(rank, argument), defined at module level

Ranks are forked from a fork server that has torch loaded already: the first call of a test session
pays torch's import (about 3 s), later ones some 0.3 s. Keep several checks in one call all the same.
"""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

PRELOADED = [
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.device_mesh",
    "torch.nn.parallel",
    "numba",
    "pytest",
    "balancer.runtime",
]
"""Slow imports that every rank would otherwise repeat. None that starts threads, as pyarrow does."""

TIMEOUT_S, GROUP_TIMEOUT_S = 1800.0, 900.0
"""Of a call and of its collectives: never waited for where all is right, so machines may be slow."""


@dataclass(frozen=True)
class Outcome:
    """How a rank ended: with a value, with an error's text, or (neither) killed, with its exit code."""

    value: Any = None
    error: str | None = None
    exitcode: int | None = 0

    @property
    def ok(self) -> bool:
        return self.error is None and self.exitcode == 0


class RankFailed(AssertionError):
    """At least one rank raised, died or ran out of time; the message has every rank's story."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes
        lines = [
            f"--- rank {rank}: {outcome.error or f'exit code {outcome.exitcode}'}"
            for rank, outcome in enumerate(outcomes)
            if not outcome.ok
        ]
        super().__init__("\n".join(["some ranks failed:", *lines]))


def run_ranks(
    function: Callable[..., Any],
    ranks: int,
    *args: Any,
    timeout_s: float = TIMEOUT_S,
    group_timeout_s: float = GROUP_TIMEOUT_S,
) -> list[Any]:
    """Call ``function(rank, *args)`` on every rank and return the values in rank order.

    The default process group is there (gloo, one thread a rank). Raises RankFailed otherwise.
    """
    outcomes = run_ranks_anyway(
        function,
        ranks,
        *args,
        timeout_s=timeout_s,
        group_timeout_s=group_timeout_s,
        stop_at_first_failure=True,
    )
    if not all(outcome.ok for outcome in outcomes):
        raise RankFailed(outcomes)
    return [outcome.value for outcome in outcomes]


def run_ranks_anyway(
    function: Callable[..., Any],
    ranks: int,
    *args: Any,
    timeout_s: float = TIMEOUT_S,
    group_timeout_s: float = GROUP_TIMEOUT_S,
    stop_at_first_failure: bool = False,
    tcp: bool = False,
) -> list[Outcome]:
    """The same, for tests that expect ranks to fail: one Outcome a rank, never an exception.

    tcp: rank 0 holds the job's store, as in most jobs; otherwise it is a file and outlives all ranks.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        readers, processes = [], []
        for rank in range(ranks):
            reader, writer = context.Pipe()
            job = (rank, ranks, str(Path(folder) / "store"), tcp, group_timeout_s, function, args)
            process = context.Process(target=_rank_main, args=(writer, *job), daemon=True)
            process.start()
            writer.close()
            readers.append(reader)
            processes.append(process)
        try:
            return _collect(readers, processes, timeout_s, stop_at_first_failure)
        finally:
            for reader, process in zip(readers, processes, strict=True):
                reader.close()
                process.kill()
                process.join()


def _collect(
    readers: list[Connection], processes: list[Any], timeout_s: float, stop_at_first_failure: bool
) -> list[Outcome]:
    deadline = time.monotonic() + timeout_s
    outcomes: dict[int, Outcome] = {}
    while len(outcomes) < len(readers):
        open_ranks = [rank for rank in range(len(readers)) if rank not in outcomes]
        ready = wait([readers[rank] for rank in open_ranks], timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for rank in open_ranks:
            if readers[rank] in ready:
                outcomes[rank] = _read(readers[rank], processes[rank])
        if stop_at_first_failure and not all(outcome.ok for outcome in outcomes.values()):
            # the others are most likely stuck in a collective; give them a moment to tell their side
            deadline = min(deadline, time.monotonic() + 2.0)
    late = Outcome(error=f"no answer within {timeout_s:g} s of the call, or after another rank had failed")
    return [outcomes.get(rank, late) for rank in range(len(readers))]


def _read(reader: Connection, process: Any) -> Outcome:
    try:
        value, error = pickle.loads(reader.recv_bytes())
    except EOFError:  # it died without a word
        process.join()
        return Outcome(exitcode=process.exitcode)
    return Outcome(value=value, error=error)


def _rank_main(
    writer: Connection,
    rank: int,
    ranks: int,
    place: str,
    tcp: bool,
    group_timeout_s: float,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        timeout = datetime.timedelta(seconds=group_timeout_s)
        file = dist.FileStore(place, ranks)
        file.set_timeout(timeout)
        store: Any = file
        if tcp and rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, ranks, is_master=True, wait_for_workers=False)
            file.set("port", str(store.port))  # one that the system chose
        elif tcp:
            store = dist.TCPStore("127.0.0.1", int(file.get("port")), ranks, timeout=timeout)
        dist.init_process_group(
            "gloo",
            store=store,
            rank=rank,
            world_size=ranks,
            timeout=timeout,
        )
        # A rank comes back from there while others still connect; were it to die now, as some tests
        # have it do, they would tell of a lost connection instead of their own end.
        file.set(f"connected {rank}", "")
        file.wait([f"connected {other}" for other in range(ranks)])
        # plain pickle: torch's own way hands over shared memory, which dies with this process
        writer.send_bytes(pickle.dumps((function(rank, *args), None)))
        # peers may still be connecting to this rank: live until the parent hangs up
        with contextlib.suppress(EOFError):
            writer.recv_bytes()
    except BaseException:
        writer.send_bytes(pickle.dumps((None, traceback.format_exc())))
    # no destroy_process_group: after a failure it would wait for peers that are gone
    os._exit(0)
