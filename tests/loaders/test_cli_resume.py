"""Killed at any moment and resumed, a run comes to the same bytes; nothing half-written looks whole."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from loaders.packing_job import atomic, folder, job, scan, window
from loaders.packing_job.atomic import told_about, whole_file
from loaders.packing_job.check import check_folder
from loaders.packing_job.workers import run_tasks
from tests.loaders.packing_runs import digest, documents, pack, write_lines, write_parquet


class Killed(BaseException):
    """Ends a run like a signal: nothing may catch it."""


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two inputs that make several tasks of each pass."""
    monkeypatch.setattr("loaders.packing_job.inputs.TASK_BYTES", 3000)
    (tmp_path / "in").mkdir()
    lines = [{"input_ids": row} for row in documents(60, 1)]
    return [
        write_parquet(tmp_path / "in" / "a.parquet", documents(120), group=15),
        write_lines(tmp_path / "in" / "b.jsonl", lines),
    ]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "megatron"])
def test_a_run_that_dies_at_any_file_goes_on_to_the_same_bytes(
    inputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    settings = {"max_tokens": 64, "window_tokens": 1, "oversize": "split", "format": kind}
    monkeypatch.setattr("loaders.packing_job.settings.PackSettings.window", lambda self, cap: 1200)
    pack(inputs, tmp_path / "whole", **settings)
    expected = digest(tmp_path / "whole")
    replace, count = os.replace, 0
    for deaths in range(200):
        survives = deaths + 1
        count = 0

        def dying(source: Any, target: Any, limit: int = survives) -> None:
            nonlocal count
            count += 1
            if count > limit:
                raise Killed
            replace(source, target)

        monkeypatch.setattr(os, "replace", dying)
        try:
            pack(inputs, tmp_path / "out", resume=True, **settings)
        except Killed:
            assert not (tmp_path / "out" / "manifest.json").exists()
            continue
        break
    assert deaths > 3
    got = digest(tmp_path / "out")
    differing = {name for name in expected if got.get(name) != expected[name]} | (set(got) - set(expected))
    assert differing <= {"manifest.json", "report.html"}  # they tell the output folder's name
    assert manifest_without_place(tmp_path / "out") == manifest_without_place(tmp_path / "whole")


def manifest_without_place(output: Path) -> Any:
    manifest = json.loads((output / "manifest.json").read_text())
    del manifest["arguments"]["output"]
    return manifest


def test_an_unfinished_run_is_neither_overwritten_nor_mixed(
    inputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(job, "write_shards", lambda *a: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            pack(inputs, tmp_path / "out")
    with pytest.raises(FileExistsError, match=r"not finished\. --resume goes on, --overwrite starts again"):
        pack(inputs, tmp_path / "out")
    with pytest.raises(ValueError, match=r"cannot resume with other settings: seed \(then 0, now 5\)"):
        pack(inputs, tmp_path / "out", resume=True, seed=5)
    write_parquet(Path(inputs[0]), documents(121))
    with pytest.raises(ValueError, match=r"cannot resume, inputs changed since: .*a\.parquet"):
        pack(inputs, tmp_path / "out", resume=True)
    assert pack(inputs, tmp_path / "out", overwrite=True)["counts"]["rows"] == 181


def test_a_finished_run_is_kept_until_told_otherwise(inputs: list[str], tmp_path: Path) -> None:
    first = pack(inputs, tmp_path / "out")
    before = digest(tmp_path / "out")
    with pytest.raises(FileExistsError, match="--overwrite replaces it"):
        pack(inputs, tmp_path / "out")
    assert pack(inputs, tmp_path / "out", resume=True) == first
    assert digest(tmp_path / "out") == before
    other = pack(inputs, tmp_path / "out", overwrite=True, format="arrow")
    assert not list((tmp_path / "out").glob("*.parquet"))
    assert other["num_packs"] == first["num_packs"]


def test_a_file_in_the_place_of_the_folder_is_named(inputs: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for output in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(FileExistsError, match="file is a file, no folder"):
            pack(inputs, output)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_with_other_things_is_left_alone(inputs: list[str], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=r"not empty \(thesis\.txt\); choose an empty folder"):
            pack(inputs, tmp_path / "out", overwrite=overwrite)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_two_runs_do_not_share_a_folder(inputs: list[str], tmp_path: Path) -> None:
    work = folder.work_folder(tmp_path / "out")
    work.mkdir(parents=True)
    with open(work / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RuntimeError, match="another run is writing here"):
            pack(inputs, tmp_path / "out")


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "the disk is full. What is finished is kept"),
        (errno.EACCES, "no permission to write here"),
    ],
)
def test_a_failing_disk_is_told_and_leaves_nothing_half_written(
    inputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, sentence: str
) -> None:
    import pyarrow.parquet as pq

    def failing(self: Any, *arguments: Any, **options: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetWriter, "write_table", failing)
        with pytest.raises(RuntimeError, match=sentence):
            pack(inputs, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.partial"))
    assert not list((tmp_path / "out").rglob("*.parquet"))
    pack(inputs, tmp_path / "out", resume=True)


def test_a_read_only_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(RuntimeError, match=r"x: no permission to write here \(Read-only file system\)"),
        told_about(Path("x")),
    ):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def _half_write(path: Path) -> None:
    with whole_file(path) as partial:
        partial.write_text("half")
        raise Killed


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(Killed):
        _half_write(path)
    assert not any(tmp_path.iterdir())
    with whole_file(path) as partial:
        partial.write_text("all")
        assert not path.exists()
    assert path.read_text() == "all"
    assert atomic.read_json(tmp_path / "none") is None


def test_an_input_that_changes_while_it_is_packed_is_told(
    inputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_window = window.write_window

    def change_first(*arguments: Any) -> int:
        write_parquet(Path(inputs[0]), documents(120, seed=9), group=15)
        return write_window(*arguments)

    monkeypatch.setattr(window, "write_window", change_first)
    with pytest.raises(RuntimeError, match="the file changed while it was being packed"):
        pack(inputs, tmp_path / "out")


def _identity(task: int) -> int:
    return task


def _die(task: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return task


def _wait(task: int) -> int:
    time.sleep(1000)
    return task


def test_all_tasks_are_done_by_any_number_of_workers() -> None:
    for workers in (1, 2, 5):
        assert sorted(run_tasks(_identity, list(range(20)), (), workers)) == list(range(20))


def test_a_killed_worker_ends_the_run_with_a_sentence() -> None:
    with pytest.raises(RuntimeError, match=r"a worker process was killed \(SIGKILL\)"):
        list(run_tasks(_die, [1, 2, 3], (), 2))


SLOW_CORPUS = """
import sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
rng = np.random.default_rng(0)
lengths = rng.integers(1, 400, 20_000)
values = rng.integers(0, 30_000, int(lengths.sum())).astype(np.int32)
offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
rows = pa.table({"input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))})
pq.write_table(rows, sys.argv[1], row_group_size=500)
"""


def number_of_files(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


@pytest.mark.slow
def test_u11_kill_nine_at_random_moments_and_resume(tmp_path: Path) -> None:
    source = tmp_path / "a.parquet"
    subprocess.run([sys.executable, "-c", SLOW_CORPUS, str(source)], check=True)
    command = [sys.executable, "-m", "loaders.cli", "pack", str(source), "--max-tokens", "512"]
    command += ["--window-tokens", "300k", "--workers", "2", "--quiet"]
    subprocess.run([*command, "-o", str(tmp_path / "whole")], check=True)
    rng = random.Random(0)
    for attempt in range(10):  # where this process stood still, a run may have ended before it was killed
        out = tmp_path / f"out{attempt}"
        resume = [*command, "-o", str(out), "--resume"]
        if _killed_runs(resume, out, rng) >= 2:
            break
    else:
        pytest.fail("no run was killed twice")
    subprocess.run(resume, check=True)
    expected, got = digest(tmp_path / "whole"), digest(out)
    shards = {name for name in expected if name.endswith(".parquet")}
    assert len(shards) > 3
    assert {name: got[name] for name in shards} == {name: expected[name] for name in shards}
    assert set(got) == set(expected)
    assert manifest_without_place(out) == manifest_without_place(tmp_path / "whole")


def _killed_runs(resume: list[str], out: Path, rng: random.Random) -> int:
    """How often a run was killed before one came to its end; at most 4 times."""
    killed = 0
    while killed < 4:
        process = subprocess.Popen(resume, start_new_session=True)
        # by what is written and not by the clock: the first run compiles, and machines are busy
        wanted = number_of_files(out) + rng.choice((1, 2))
        while process.poll() is None and number_of_files(out) < wanted:
            time.sleep(0.001)
        if process.poll() is not None:
            assert process.returncode == 0
            break
        time.sleep(rng.uniform(0.0, 0.05))
        process.kill()  # only the parent: its workers must end by themselves
        process.wait()
        killed += 1
        if (out / "manifest.json").exists():  # it is the last thing written
            assert list(check_folder(out))
    return killed


@pytest.mark.slow
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    code = (
        "from tests.loaders.test_cli_resume import _wait\n"
        "from loaders.packing_job.workers import run_tasks\n"
        "list(run_tasks(_wait, [1, 2], (), 2))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    children: list[int] = []
    give_up = time.monotonic() + 120
    while len(children) < 2 and time.monotonic() < give_up:
        time.sleep(0.1)
        path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        children = [int(pid) for pid in path.read_text().split()] if path.exists() else []
    assert len(children) == 2
    process.kill()
    process.wait()
    give_up = time.monotonic() + 120  # the workers sleep for longer
    while left := [pid for pid in children if _lives(pid)]:
        assert time.monotonic() < give_up, left
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_results_of_the_first_pass_are_read_back(tmp_path: Path) -> None:
    import numpy as np

    result = scan.ScanResult(
        rows=np.array([2]),
        lengths=np.array([3, 2**31]),
        reach=None,
        num_null=1,
        rejects=[{"origin": "a", "reason": "b"}],
    )
    scan.save(result, tmp_path, 4)
    back = scan.load(tmp_path, 4)
    assert back.lengths.tolist() == [3, 2**31]
    assert (back.reach, back.num_null, back.rejects) == (None, 1, [{"origin": "a", "reason": "b"}])


def test_a_run_that_stops_over_a_misspelt_column_need_not_be_resumed(
    inputs: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no column 'ids'"):
        pack(inputs, tmp_path / "out", column="ids")
    assert pack(inputs, tmp_path / "out")["counts"]["rows"] == 180
