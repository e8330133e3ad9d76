"""Packed on a cluster, a corpus comes to the same bytes as on one machine, whatever dies meanwhile."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loaders.packing_job.check import check_folder
from loaders.packing_job.folder import work_folder
from loaders.packing_job.job import run
from loaders.packing_job.workers import run_tasks as run_here
from tests.loaders.packing_runs import digest, documents, write_lines, write_parquet

pytest.importorskip("ray")

from loaders.ray_engine import packing as on_cluster
from loaders.ray_engine.packing import check_node, task_runner, versions
from tests.ray.nodes import cluster_of
from tests.ray.slow_pack import TASK_S, settings_of, slowed

QUIET = Console(file=io.StringIO())
TOLD = {"manifest.json", "report.html"}
"""They name the output folder."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with cluster_of(2) as cluster:
        yield cluster


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two inputs that make several tasks of each pass."""
    monkeypatch.setattr("loaders.packing_job.inputs.TASK_BYTES", 3000)
    monkeypatch.setattr("loaders.packing_job.settings.PackSettings.window", lambda self, cap: 1200)
    (tmp_path / "in").mkdir()
    lines = [{"input_ids": row} for row in documents(60, 1)]
    return [
        write_parquet(tmp_path / "in" / "a.parquet", documents(120), group=15),
        write_lines(tmp_path / "in" / "b.jsonl", lines),
    ]


def shards_done(output: Path) -> dict[str, float]:
    """Results of finished shards, and when they were written."""
    return {path.name: path.stat().st_mtime for path in work_folder(output).glob("shards/*/*.json")}


def wait_for(what: Callable[[], Any], limit_s: float = 600.0) -> Any:
    give_up = time.monotonic() + limit_s
    while not (found := what()):
        assert time.monotonic() < give_up, "nothing happened"
        time.sleep(0.05)
    return found


def settled(output: Path) -> dict[str, float]:
    """The finished shards, once none has come for as long as ten tasks take."""
    seen: list[dict[str, float]] = []

    def unchanged() -> bool:
        seen.append(shards_done(output))
        time.sleep(TASK_S)
        return len(seen) > 10 and all(one == seen[-1] for one in seen[-10:])

    wait_for(unchanged)
    return seen[-1]


def same_bytes(got: Path, expected: Path) -> None:
    one, other = digest(got), digest(expected)
    assert set(one) == set(other)
    assert {name for name in one if one[name] != other[name]} <= TOLD
    told = [json.loads((folder / "manifest.json").read_text()) for folder in (got, expected)]
    for manifest in told:
        del manifest["arguments"]["output"]
    assert told[0] == told[1]
    assert list(check_folder(got))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "arrow", "megatron"])
def test_a_cluster_writes_the_bytes_that_one_machine_writes(
    inputs: list[str], tmp_path: Path, cluster: Any, kind: str
) -> None:
    run(settings_of(inputs, tmp_path / "here", format=kind), QUIET)
    with task_runner(tmp_path / "there", cluster.address) as runner:
        run(settings_of(inputs, tmp_path / "there", format=kind), QUIET, runner=runner)
    assert len(digest(tmp_path / "here")) > 3
    same_bytes(tmp_path / "there", tmp_path / "here")


@pytest.mark.slow
def test_relative_inputs_are_found(
    inputs: list[str], tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = [os.path.relpath(name) for name in inputs]
    run(settings_of(relative, tmp_path / "here"), QUIET)
    with task_runner(tmp_path / "there", cluster.address) as runner:
        run(settings_of(relative, tmp_path / "there"), QUIET, runner=runner)
    same_bytes(tmp_path / "there", tmp_path / "here")


@pytest.mark.slow
def test_both_nodes_take_part_and_workers_limit_the_tasks(tmp_path: Path, cluster: Any) -> None:
    claim(tmp_path)
    with task_runner(tmp_path, cluster.address) as runner:
        assert len(set(runner(_meeting, list(range(2)), (tmp_path,), 1))) == 2
    with task_runner(tmp_path, cluster.address, most=1) as runner:
        assert sorted(runner(_tasks_at_once, list(range(6)), (tmp_path,), 1)) == [1] * 6


def claim(output: Path) -> None:
    work_folder(output).mkdir(parents=True)
    (work_folder(output) / "job.json").write_text("{}")


def _meeting(task: int, folder: Path) -> int:
    """Number of this node, once a task of another one has come too."""
    import ray

    node = ray.get_runtime_context().get_node_id()[:12]
    (folder / f"met-{node}").touch()
    wait_for(lambda: len(list(folder.glob("met-*"))) == 2)
    return int(node, 16)


def _tasks_at_once(task: int, folder: Path) -> int:
    mine = folder / f"at-work-{task}"
    mine.touch()
    time.sleep(0.1)
    found = len(list(folder.glob("at-work-*")))
    mine.unlink()
    return found


@pytest.mark.slow
def test_a_node_lost_on_the_way_changes_no_byte(inputs: list[str], tmp_path: Path, cluster: Any) -> None:
    run(settings_of(inputs, tmp_path / "here"), QUIET)
    lost = sorted(cluster.worker_nodes, key=id)[0]
    killer = threading.Thread(target=_kill_after_shards, args=(cluster, lost, tmp_path / "there", 2))
    try:
        with task_runner(tmp_path / "there", cluster.address) as runner:
            killer.start()
            run(settings_of(inputs, tmp_path / "there"), QUIET, runner=slowed(runner))
        killer.join()
        assert lost not in cluster.worker_nodes
    finally:
        cluster.add_node(num_cpus=1, object_store_memory=200 << 20)
    same_bytes(tmp_path / "there", tmp_path / "here")


def _kill_after_shards(cluster: Any, node: Any, output: Path, shards: int) -> None:
    wait_for(lambda: len(shards_done(output)) >= shards)
    cluster.remove_node(node, allow_graceful=False)


@pytest.mark.slow
def test_driver_and_node_lost_leave_a_folder_that_goes_on(
    inputs: list[str], tmp_path: Path, cluster: Any
) -> None:
    there = tmp_path / "there"
    run(settings_of(inputs[:1], tmp_path / "here"), QUIET)
    code = (
        "import loaders.packing_job.inputs as i, loaders.packing_job.settings as s\n"
        "i.TASK_BYTES = 3000; s.PackSettings.window = lambda self, cap: 1200\n"
        "from tests.ray.slow_pack import main; main()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, cluster.address, inputs[0], str(there)])
    lost = sorted(cluster.worker_nodes, key=id)[0]
    try:
        wait_for(lambda: len(shards_done(there)) >= 2)
        process.kill()
        process.wait()
        cluster.remove_node(lost, allow_graceful=False)
        before = settled(there)  # tasks of a driver that is gone are ended by Ray
        assert not (there / "manifest.json").exists()
        kept: list[bool] = []
        with task_runner(there, cluster.address) as runner:

            def watched(*arguments: Any) -> Iterator[int]:
                kept.append({name: shards_done(there).get(name) for name in before} == before)
                return runner(*arguments)

            run(settings_of(inputs[:1], there), QUIET, resume=True, runner=watched)
    finally:
        process.kill()
        cluster.add_node(num_cpus=1, object_store_memory=200 << 20)
    assert len(before) >= 2
    assert kept
    assert all(kept)
    same_bytes(there, tmp_path / "here")


@pytest.mark.slow
def test_what_a_task_refuses_is_told_as_on_one_machine(tmp_path: Path, cluster: Any) -> None:
    claim(tmp_path)
    with task_runner(tmp_path, cluster.address) as runner:
        with pytest.raises(ValueError, match="row 3 is bad") as there:
            list(runner(_refuse, list(range(6)), ("bad",), 1))
        with pytest.raises(ValueError, match="row 3 is bad") as here:
            list(run_here(_refuse, list(range(6)), ("bad",), 1))
        assert type(there.value) is type(here.value)
        with pytest.raises(RuntimeError, match=r"lost its worker 4 times .* run again with --resume"):
            list(runner(_die, [1], (), 1))


@pytest.mark.slow
def test_tasks_that_end_while_another_is_refused_do_not_end_the_run(tmp_path: Path, cluster: Any) -> None:
    claim(tmp_path)
    code = "import sys; from tests.ray.test_pack import _refused_often; _refused_often(*sys.argv[1:])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path), cluster.address], check=True)


def _refused_often(output: str, address: str) -> None:
    """In a process of its own, which Ray would abort."""
    with task_runner(Path(output), address) as runner:
        for _ in range(100):
            with suppress(ValueError):
                list(runner(_refuse, list(range(6)), ("bad",), 1))


def _refuse(task: int, why: str) -> int:
    if task == 3:
        raise ValueError(f"row {task} is {why}")
    return task


def _die(task: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return task


@pytest.mark.slow
def test_the_command_starts_a_cluster_of_its_own_and_takes_it_away(inputs: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loaders.cli", "pack", *inputs, "--max-tokens", "64", "--quiet"]
    command += ["--oversize", "split", "--workers", "2"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    subprocess.run([*command, "-o", str(tmp_path / "here")], check=True)
    code = "import sys, os; os.setsid(); from loaders.cli import main; sys.argv = sys.argv[1:]; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command[2:], "-o", str(tmp_path / "there"), "--engine", "ray"],
        env=environment,
    )
    assert process.wait(600) == 0
    same_bytes(tmp_path / "there", tmp_path / "here")
    wait_for(lambda: not _of_session(process.pid))


def _of_session(leader: int) -> list[str]:
    """Command lines of processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append((path.parent / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_a_node_with_other_versions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")
    check_node(str(tmp_path / "job.json"), versions())
    with pytest.raises(RuntimeError, match=r"has pyarrow [\d.]+ \(here 1\.0\): its shards might differ"):
        check_node(str(tmp_path / "job.json"), {**versions(), "pyarrow": "1.0"})


def test_a_node_that_does_not_see_the_output_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_cluster, "VISIBLE_S", 0.0)
    with pytest.raises(RuntimeError, match=r"does not see .*none.*: on a cluster, inputs and output must"):
        check_node(str(tmp_path / "none"), versions())


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(ConnectionError, match=r"no Ray cluster answers at 127\.0\.0\.1:9"),
        task_runner(tmp_path, "127.0.0.1:9"),
    ):
        pass
