"""Tasks on several processes, results as they come."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

QUEUED_PER_WORKER = 2
ENDING_S = 10.0
"""Until it is known how workers ended that were killed."""
_SHARED: tuple[Any, ...] = ()


class RunTasks(Protocol):
    """Where the tasks of a pass run: on processes of this machine (`run_tasks`), or elsewhere."""

    def __call__(
        self, function: Callable[..., int], tasks: Sequence[Any], shared: tuple[Any, ...], workers: int, /
    ) -> Iterator[int]:
        """``function(task, *shared)`` once for every task; yields what each returns, as they end.

        A task writes whole files or none, so one that was lost half-way may be run again, anywhere.
        """


def available_cpus() -> int:
    """Processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_tasks(
    function: Callable[..., int], tasks: Sequence[Any], shared: tuple[Any, ...], workers: int
) -> Iterator[int]:
    """``function(task, *shared)`` for every task, on at most ``workers`` processes; yields what each returns.

    Tasks begin in the order given and may end in any. With one worker nothing is started. A worker that is
    killed ends the run with RuntimeError; workers end when this process does, however it dies.
    """
    workers = min(workers, len(tasks))
    if workers <= 1:
        for task in tasks:
            yield function(task, *shared)
        return
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    executor = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin, initargs=(os.getpid(), shared)
    )
    waiting: set[Future[int]] = set()
    processes: list[multiprocessing.process.BaseProcess] = []
    left = iter(tasks)
    try:
        while True:
            while len(waiting) < workers * QUEUED_PER_WORKER and (task := next(left, None)) is not None:
                waiting.add(executor.submit(_call, function, task))
                processes = processes or list((executor._processes or {}).values())
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    except BrokenProcessPool:
        raise RuntimeError(
            f"a worker process was killed ({_ends(processes)}). What is finished is kept: run again with "
            "--resume. SIGKILL most often means that memory ran out: use fewer --workers or a smaller "
            "--window-tokens."
        ) from None
    finally:
        executor.shutdown(wait=not waiting, cancel_futures=True)
        for process in processes if waiting else []:
            with contextlib.suppress(OSError):
                process.terminate()


def _ends(processes: Sequence[multiprocessing.process.BaseProcess]) -> str:
    """How the workers that died by themselves ended; the others are ended by the executor, with SIGTERM."""
    give_up = time.monotonic() + ENDING_S
    # the executor asks too, and whoever asks second is not told how a process ended before the first one is
    while any(process.exitcode is None for process in processes) and time.monotonic() < give_up:
        time.sleep(0.01)
    codes = {process.exitcode for process in processes} - {None, 0, -signal.SIGTERM}
    names = [
        signal.Signals(-code).name if code < 0 else f"status {code}" for code in codes if code is not None
    ]
    return ", ".join(sorted(names)) or "no status known"


def _begin(parent: int, shared: tuple[Any, ...]) -> None:
    global _SHARED
    _SHARED = shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers Ctrl-C
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread a worker
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            set_on_parent_death = 1  # PR_SET_PDEATHSIG
            ctypes.CDLL(None).prctl(set_on_parent_death, signal.SIGKILL)
    if os.getppid() != parent:  # it died before this worker could ask to be told
        os._exit(1)


def _call(function: Callable[..., int], task: Any) -> int:
    return function(task, *_SHARED)
