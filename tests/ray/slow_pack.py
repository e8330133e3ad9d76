"""``python -m tests.ray.slow_pack ADDRESS INPUT OUTPUT``: a run on a cluster, to be killed."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from loaders.packing_job.folder import work_folder
from loaders.packing_job.job import run
from loaders.packing_job.settings import PackSettings
from loaders.packing_job.workers import RunTasks
from loaders.ray_engine.packing import task_runner

TASK_S = 0.4
HELD = 2
"""Once so many shards are finished, `main` begins no other: it is killed then, however long that takes."""


def settings_of(inputs: list[str], output: Path, **others: Any) -> PackSettings:
    return PackSettings(
        inputs=tuple(inputs),
        output=str(output),
        max_tokens=(64,),
        window_tokens=1,
        oversize="split",
        **others,
    )


def slowly(function: Callable[..., int], task: Any, *shared: Any) -> int:
    time.sleep(TASK_S)
    return function(task, *shared)


def held(function: Callable[..., int], output: Path, task: Any, *shared: Any) -> int:
    while len(list(work_folder(output).glob("shards/*/*.json"))) >= HELD:
        time.sleep(0.1)
    return function(task, *shared)


def slowed(runner: RunTasks) -> RunTasks:
    return lambda function, *rest: runner(partial(slowly, function), *rest)


def main() -> None:
    address, source, output = sys.argv[1:]
    settings = settings_of([source], Path(output))
    with task_runner(Path(output), address) as runner:

        def run_held(function: Callable[..., int], *rest: Any) -> Iterator[int]:
            return runner(partial(held, function, Path(output)), *rest)

        run(settings, Console(file=io.StringIO()), resume=True, runner=run_held)


if __name__ == "__main__":
    main()
