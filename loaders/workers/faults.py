"""Sentences for workers that die, stand still, or never start: which one, at what, and the way out."""

from __future__ import annotations

import multiprocessing.reduction
import re
import signal
from collections.abc import Mapping
from typing import Any

from loaders.workers.slate import Seen

SHM_MARKS = ("No space left on device", "shared memory", "Bus error", "shm")
SHM_WAY_OUT = (
    "Batches with tensors travel through /dev/shm, which is full: give it more room (docker run "
    "--shm-size=8g, in Kubernetes an emptyDir of medium Memory), or pass a smaller prefetch_factor or "
    "num_workers."
)
WAYS_OUT = {
    "Killed": "The system kills the largest process when memory runs out: pass a smaller num_workers or "
    "prefetch_factor, or give the job more memory.",
    "Bus error": SHM_WAY_OUT,
    "Segmentation fault": "A library crashed, most likely on this sample: num_workers=0 with python -X "
    "faulthandler shows where.",
    "Terminated": "Code that OpenMP runs in parallel (numba's parallel=True) ends its process so, where it "
    'has run in the training process before the fork: pass multiprocessing_context="forkserver".',
}
OTHERWISE = "num_workers=0 shows where it fails."


class WorkerError(RuntimeError):
    """A worker died, stands still, or cannot be started."""


def pids_in(message: str) -> list[int]:
    """Process ids in one of torch's messages about workers."""
    named = re.search(r"\(pid(?:\(s\))? ([\d, ]+)\)", message)
    return [int(pid) for pid in named.group(1).split(",")] if named else []


def died(worker: int, pid: int | None, exitcode: int | None, seen: Seen, words: str) -> str:
    """A worker that is no more.

    Args:
        worker: its number.
        pid: its process.
        exitcode: how it ended, as `multiprocessing` has it.
        seen: what its slate says.
        words: why it could not send a batch, or empty.
    """
    who = f"worker {worker} (pid {pid})"
    if words:
        way_out = (
            SHM_WAY_OUT
            if any(mark in words for mark in SHM_MARKS)
            else "What collate_fn or the data set returns must be something that pickle can send: arrays, "
            "tensors, numbers, strings, lists, dicts."
        )
        return f"{who} could not send a batch: {words}. By then it {seen.doing()}. {way_out}"
    killed = signal.strsignal(-exitcode) if exitcode is not None and exitcode < 0 else None
    how = f"was killed by signal: {killed}" if killed else f"exited unexpectedly with code {exitcode}"
    way_out = WAYS_OUT.get(killed or "", OTHERWISE)
    return f"{who} {how}. It {seen.doing()}. {way_out}"


def timed_out(timeout_s: float, worker: int | None, pid: int | None, seen: Seen) -> str:
    """A batch that does not come, from a worker or (``None``) from this process's own reading thread."""
    who = "the reading thread" if worker is None else f"worker {worker} (pid {pid})"
    return (
        f"no batch came within timeout={timeout_s:g} s: {who} {seen.doing()}. Raise timeout if the storage "
        "is only slow; leave the file out if it never answers."
    )


def cannot_start(error: BaseException, arguments: Mapping[str, Any], method: str) -> str | None:
    """Which argument cannot be sent to a worker, or what else kept it from starting.

    ``None`` if none of ``arguments`` is to blame.
    """
    if isinstance(error, OSError):
        return f"workers cannot be started: {error}. {SHM_WAY_OUT}" if error.errno == 28 else None
    for name, value in arguments.items():
        try:
            multiprocessing.reduction.ForkingPickler.dumps(value)
        except Exception as reason:
            if "only be shared between processes through inheritance" in str(reason):
                continue
            return (
                f"{name} cannot be sent to workers, which multiprocessing_context={method!r} starts afresh: "
                f"{type(reason).__name__}: {reason}. Define it at the top level of a module (no lambda, no "
                'local function, no open file or lock in it), or pass multiprocessing_context="fork" or '
                "num_workers=0."
            )
    return None
