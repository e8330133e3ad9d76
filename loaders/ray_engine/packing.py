"""Both passes of ``evenload pack`` as Ray tasks.

Plan, manifest and final names stay with the run that was started; a task reads inputs and writes files
itself, so no token passes through Ray. The folders are the protocol: a task's file is there whole or not
at all, which makes a task that was lost with its node one that is simply done again.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayTaskError, WorkerCrashedError

from loaders.packing_job.folder import work_folder
from loaders.packing_job.workers import RunTasks
from loaders.ray_engine.cluster import connected, total_cpus

RETRIES = 3
"""Times that a task is done again when its worker or node is lost; then the task itself is to blame."""
QUEUED_PER_CPU = 2
"""Tasks handed out ahead, so that none waits for the driver and an autoscaler sees that there is more."""
POLL_S = 5.0
"""So often the cluster's size is asked for again: nodes come and go."""
VISIBLE_S = 15.0
"""A network file system may show a new file on other machines only after some seconds."""

_SHARED: dict[str, tuple[Any, ...]] = {}


@contextmanager
def task_runner(output: Path, address: str | None = None, *, most: int | None = None) -> Iterator[RunTasks]:
    """Tasks for a run into ``output`` on the cluster at ``address``; at most ``most`` of them at a time.

    Raises what `connected` raises. The runner raises what a task raises, and RuntimeError when a task's
    workers die again and again, or a node does not see ``output`` or has other versions of what writes it.
    """
    with connected(address):
        marker = str((work_folder(output) / "job.json").absolute())
        check = (marker, os.getcwd(), versions())

        def run(
            function: Callable[..., int], tasks: Sequence[Any], shared: tuple[Any, ...], workers: int, /
        ) -> Iterator[int]:
            return run_tasks(function, tasks, shared, most, check)

        yield run


def run_tasks(
    function: Callable[..., int],
    tasks: Sequence[Any],
    shared: tuple[Any, ...],
    most: int | None,
    check: tuple[str, str, dict[str, str]],
) -> Iterator[int]:
    """``function(task, *shared)`` for every task; yields what each returns. A node gets ``shared`` once.

    Where one raises, those already handed out run on, until they end or the session does: Ray aborts the
    whole driver where a cancelled task ends at the same moment (of the kind of ray-project/ray#54798).
    """
    reference = ray.put(shared)
    left = iter(tasks)
    waiting: list[Any] = []
    room, asked = 0, -POLL_S
    while True:
        if time.monotonic() - asked > POLL_S:
            room = most or total_cpus() * QUEUED_PER_CPU
            asked = time.monotonic()
        while len(waiting) < room and (task := next(left, None)) is not None:
            waiting.append(_call.remote([reference], function, task, check))
        if not waiting:
            return
        done, waiting = ray.wait(waiting, timeout=POLL_S)
        for one in done:
            yield _result(one)


def _result(reference: Any) -> int:
    try:
        amount: int = ray.get(reference)
        return amount
    except RayTaskError as error:
        raise error.cause from None
    except (WorkerCrashedError, NodeDiedError, OutOfMemoryError) as error:
        raise RuntimeError(
            f"a task lost its worker {RETRIES + 1} times ({type(error).__name__}). What is finished is kept: "
            "run again with --resume. Most often the memory of a node ran out: use a smaller "
            "--window-tokens, fewer --workers, or nodes with more memory a CPU."
        ) from None


@ray.remote(num_cpus=1, max_retries=RETRIES)
def _call(
    reference: list[Any], function: Callable[..., int], task: Any, check: tuple[str, str, dict[str, str]]
) -> int:
    """On a worker. ``reference`` stands in a list, so that a worker and not each task fetches it."""
    (shared,) = reference
    key = shared.hex()
    if key not in _SHARED:
        marker, folder, expected = check
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread a worker
        with suppress(OSError):  # relative inputs; where the folder is missing, a task says which file is
            os.chdir(folder)
        check_node(marker, expected)
        _SHARED.clear()
        _SHARED[key] = ray.get(shared)
    return function(task, *_SHARED[key])


def check_node(marker: str, expected: dict[str, str]) -> None:
    """Raise RuntimeError where this node would write elsewhere, or other bytes."""
    node = platform.node()
    found = versions()
    if found != expected:
        differing = [name for name in expected if found[name] != expected[name]]
        told = ", ".join(f"{name} {found[name]} (here {expected[name]})" for name in differing)
        raise RuntimeError(f"node {node} has {told}: its shards might differ. Install the same versions.")
    give_up = time.monotonic() + VISIBLE_S
    while not os.path.exists(marker):
        if time.monotonic() > give_up:
            raise RuntimeError(
                f"node {node} does not see {marker}: on a cluster, inputs and output must be on storage that "
                "every node has under the same path."
            )
        time.sleep(0.2)


def versions() -> dict[str, str]:
    """What an output file's bytes depend on beside inputs, settings and seed."""
    return {name: version(name) for name in ("evenload", "pyarrow", "numpy")}
