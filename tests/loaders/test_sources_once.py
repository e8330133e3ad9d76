"""Long preparation is done once for all processes that share a folder, and nobody waits for the dead."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaders.sources import once as once_module
from loaders.sources.once import once, progress
from loaders.sources.open import open_source
from tests.support.ranks import run_ranks, run_ranks_anyway

ROWS = [[1] * (1 + row % 7) for row in range(100)]


ENOUGH_S = 120.0
"""Never waited for where all is right."""


class Kept:
    """A result in a file, how often it was made, and what is done meanwhile."""

    def __init__(
        self, folder: Path, meanwhile: Callable[[], Any] = lambda: None, error: Exception | None = None
    ) -> None:
        self.place = folder / "result"
        self.meanwhile = meanwhile
        self.error = error
        self.made = 0
        self.keeps = True
        self.began = threading.Event()

    def look(self) -> str | None:
        return self.place.read_text() if self.place.exists() else None

    def make(self) -> str:
        self.made += 1
        self.began.set()
        progress(3, 8)
        self.meanwhile()
        if self.error is not None:
            raise self.error
        if self.keeps:
            partial = self.place.with_name(f"part{threading.get_ident()}")
            partial.write_text("made")
            partial.replace(self.place)
        return "made"

    def get(self) -> str:
        return once(self.place, "lengths of data", self.look, self.make)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def until(condition: Callable[[], Any]) -> None:
    give_up = time.monotonic() + ENOUGH_S
    while not condition():
        assert time.monotonic() < give_up, "nothing happened"
        time.sleep(0.01)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Threads that have waited for another one."""
    threads: set[int] = set()
    tell = once_module._Waiting.tell

    def noted(self: Any, record: dict[str, Any]) -> None:
        threads.add(threading.get_ident())
        tell(self, record)

    monkeypatch.setattr(once_module._Waiting, "tell", noted)
    return threads


def test_many_at_once_make_it_once_and_leave_nothing_but_the_result(
    tmp_path: Path, waiting: set[int]
) -> None:
    kept = Kept(tmp_path, lambda: until(lambda: len(waiting) == 7))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: kept.get(), range(8))) == ["made"] * 8
    assert kept.made == 1
    assert names(tmp_path) == ["result"]
    assert kept.get() == "made"


def test_what_is_not_kept_is_made_by_each_at_the_same_time(tmp_path: Path, waiting: set[int]) -> None:
    meet = threading.Barrier(7, timeout=ENOUGH_S)  # those who waited for the first
    first: list[int] = []

    def meanwhile() -> None:
        if first:
            meet.wait()
        else:
            first.append(threading.get_ident())
            until(lambda: len(waiting) == 7)

    kept = Kept(tmp_path, meanwhile)
    kept.keeps = False
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: kept.get(), range(8))) == ["made"] * 8
    assert kept.made == 8
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_leaves_the_work_to_each(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept = Kept(tmp_path / "file")
    kept.keeps = False
    assert [kept.get(), kept.get()] == ["made", "made"]


@pytest.mark.parametrize("error", [ValueError("a.jsonl, line 7: no object"), KeyError("text")])
def test_those_who_wait_raise_the_makers_error(
    error: Exception, tmp_path: Path, waiting: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once_module, "SHORT_S", 0.0)
    kept = Kept(tmp_path, lambda: until(lambda: len(waiting) == 3), error=error)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(kept.get) for _ in range(4)]
    found = [future.exception() for future in futures]
    assert kept.made == 1
    assert sum(one is error for one in found) == 1
    told = [one for one in found if one is not error]
    assert {type(one) for one in told} == {ValueError if isinstance(error, ValueError) else RuntimeError}
    for one in told:
        assert str(error) in str(one)
        assert f"found by process {os.getpid()} on" in str(one)
    kept.error, kept.meanwhile = None, lambda: None  # an earlier failure is not held against a later attempt
    assert kept.get() == "made"
    assert names(tmp_path) == ["result"]


def left_behind(place: Path, **record: Any) -> None:
    (place.parent / f"{place.name}.0.lock").write_text(json.dumps({"token": "x", "pid": 7, **record}))


def clock_of(sleep: Callable[[float], Any]) -> SimpleNamespace:
    """The clock of those who wait; pauses between their looks last as long as ``sleep`` does."""
    return SimpleNamespace(monotonic=time.monotonic, sleep=sleep)


def owner_of(kept: Kept) -> dict[str, Any]:
    """What the last owner's file says; empty where there is none."""
    while (record := once_module._newest(kept.place)[1]) == {}:  # it is being written
        time.sleep(0.001)
    return record or {}


def test_an_owner_on_another_machine_that_falls_silent_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def sleep(_: float) -> None:  # nobody is waited for in vain, but who takes over for as long as it takes
        if owner_of(kept).get("token") != "x":
            until(kept.place.exists)

    monkeypatch.setattr(once_module, "time", clock_of(sleep))
    kept = Kept(tmp_path)
    left_behind(kept.place, host="far", here="another machine", beat=1)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: kept.get(), range(4))) == ["made"] * 4
    assert kept.made == 1
    assert names(tmp_path) == ["result"]
    assert "process 7 on far has died" in caplog.text


def test_time_in_which_nobody_looked_is_no_silence_of_an_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the whole machine stood still, its clock has gone on, and the owner had no turn either."""
    pauses: list[float] = []

    def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 5:
            kept.place.write_text("made")
            (tmp_path / "result.0.lock").unlink()

    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr(once_module, "time", SimpleNamespace(monotonic=lambda: next(hours), sleep=sleep))
    kept = Kept(tmp_path)
    left_behind(kept.place, host="far", here="another machine", beat=1)
    assert kept.get() == "made"
    assert kept.made == 0
    assert sum(pauses) < once_module.LIMIT_S


def test_an_owner_that_still_speaks_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly the whole limit passes between two looks, and it has spoken again by each."""
    pauses: Counter[int] = Counter()

    def sleep(_: float) -> None:
        pauses[threading.get_ident()] += 1
        before = owner_of(kept).get("beat", 0)
        until(lambda: owner_of(kept).get("beat", 0) > before or kept.place.exists())

    monkeypatch.setattr(once_module, "BEAT_S", 0.05)
    monkeypatch.setattr(once_module, "POLL_S", (0.9 * once_module.LIMIT_S,) * 2)
    monkeypatch.setattr(once_module, "_is_gone", lambda record: False)
    monkeypatch.setattr(once_module, "time", clock_of(sleep))
    kept = Kept(tmp_path, lambda: until(lambda: len(pauses) == 2 and min(pauses.values()) > 5))
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: kept.get(), range(3))) == ["made"] * 3
    assert kept.made == 1


def test_a_dead_owner_on_this_machine_is_known_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = once_module._here()
    if not here:
        pytest.skip("this system does not tell which processes live")
    monkeypatch.setattr(once_module, "time", clock_of(lambda _: pytest.fail("it was waited for")))
    kept = Kept(tmp_path)
    left_behind(kept.place, host="here", here=here, started="1")
    assert kept.get() == "made"
    assert names(tmp_path) == ["result"]


def test_waiting_is_told_with_who_is_at_work_and_how_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == once_module.__name__]

    monkeypatch.setattr(once_module, "TOLD_S", (0.3, 6000.0))
    monkeypatch.setattr(once_module, "BEAT_S", 0.05)
    kept = Kept(tmp_path, lambda: until(told))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(kept.get)
        until(lambda: owner_of(kept).get("total") == 8)
        second = pool.submit(kept.get)
        assert first.result() == second.result() == "made"
    [sentence] = told()
    own = f"process {os.getpid()}"
    assert re.match(rf"lengths of data: {own} has waited \d+ s for {own}", sentence)
    assert "3 of 8 done" in sentence


# ------------------------------------------------------------------------------------------------ U21


def lengths_of(
    rank: int, data: str, folders: list[str], log: str, prepare_s: float, dies: bool = False
) -> int:
    """Rank by rank: find lengths, which takes long, then meet the others in a collective."""
    import torch
    import torch.distributed as dist

    from balancer.runtime.members import default_store
    from loaders.sources.parquet import ParquetSource

    once_module.LIMIT_S = 10 * ENOUGH_S  # silence tells of no death here: that of a process is seen at once
    scan = ParquetSource._scan_tokens

    def slow(self: ParquetSource) -> Any:
        with open(log, "a") as file:
            file.write(f"{rank} {folders[rank]}\n")
        if dies and rank == 0:
            time.sleep(prepare_s / 2)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(prepare_s)
        return scan(self)

    ParquetSource._scan_tokens = slow
    if dies and rank:
        until(lambda: Path(log).exists())  # so that rank 0 is the one that prepares
    elif not dies:
        dist.barrier()
        # collectives give up long before the lengths are there
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=prepare_s / 3))
    lengths = open_source(data, cache=folders[rank]).lengths()
    if not dies:
        store, ranks = default_store(), dist.get_world_size()
        store.set(f"done/{rank}", "1")
        store.wait([f"done/{one}" for one in range(ranks)], timedelta(seconds=ENOUGH_S))
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=ENOUGH_S))
        total = torch.tensor([int(lengths.sum())])
        dist.all_reduce(total)
        assert total.item() == ranks * sum(map(len, ROWS))
    return int(lengths.sum())


class Watch:
    """Loads every file that appears under a folder, over and over, as another process may do at any time."""

    def __init__(self, folder: Path) -> None:
        self.loads = 0
        self.errors: list[Exception] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(folder,))

    def _run(self, folder: Path) -> None:
        while not self._stop.wait(0.001):
            for path in folder.rglob("*.npz"):
                try:
                    with np.load(path) as arrays:
                        self.loads += len([arrays[name] for name in arrays])
                except Exception as error:
                    self.errors.append(error)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def write_rows(path: Path) -> str:
    pq.write_table(pa.table({"input_ids": pa.array(ROWS, pa.list_(pa.int32()))}), path, row_group_size=10)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False], ids=["one folder", "a folder for each node"])
def test_u21_preparation_beyond_the_timeout_of_collectives_is_done_once_a_folder(
    shared: bool, tmp_path: Path
) -> None:
    """Two nodes of two ranks; 6 s of work, and collectives that give up after 2 s of waiting."""
    data, log = write_rows(tmp_path / "a.parquet"), tmp_path / "log"
    folders = [str(tmp_path / "cache" / ("all" if shared else f"node{rank // 2}")) for rank in range(4)]
    with Watch(tmp_path / "cache") as watch:
        found = run_ranks(lengths_of, 4, data, folders, str(log), 6.0)
        until(lambda: watch.loads)
    assert found == [sum(map(len, ROWS))] * 4
    prepared = [line.split(maxsplit=1)[1] for line in log.read_text().splitlines()]
    assert sorted(prepared) == sorted(set(folders))  # once for each folder
    assert watch.errors == []
    assert {path.suffix for path in (tmp_path / "cache").rglob("*") if path.is_file()} == {".npz"}


@pytest.mark.slow
def test_u21_another_takes_over_from_a_preparing_rank_that_is_killed(tmp_path: Path) -> None:
    data, log = write_rows(tmp_path / "a.parquet"), tmp_path / "log"
    folders = [str(tmp_path / "cache")] * 4
    outcomes = run_ranks_anyway(lengths_of, 4, data, folders, str(log), 6.0, True)
    assert outcomes[0].exitcode == -signal.SIGKILL
    assert [outcome.value for outcome in outcomes[1:]] == [sum(map(len, ROWS))] * 3
    prepared = [int(line.split()[0]) for line in log.read_text().splitlines()]
    assert len(prepared) == 2  # the dead one, and one of the others
    assert prepared[0] == 0
