"""Workers that die or stand still, training processes that are interrupted or killed: a sentence, no rest."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torch.utils.data import Dataset, IterableDataset

from loaders import DataLoader, open_source
from loaders.ahead import Late, ahead
from loaders.faults import SampleError
from loaders.workers import forks
from loaders.workers.faults import WorkerError, died
from loaders.workers.forks import ForkGate
from loaders.workers.reading import ReadingIterator
from loaders.workers.slate import FIELDS, Seen, Slate, note, write_on
from loaders.workers.timed import Caller
from loaders.workers.timed import Late as CallLate
from tests.loaders.arrays import ArraySource

ROOT = Path(__file__).parents[2]
ROWS = 60
BAD = 37


class Doomed(Dataset):
    """Sample 37 does something to the process that reads it."""

    def __init__(self, what):
        self.what = what

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        if row == BAD:
            self.what()
        return {"input_ids": np.arange(5), "extra": row}


def doomed_loader(what, *, extra=(), **arguments):
    source = open_source(Doomed(what), length=np.full(ROWS, 5), labels=False, carry=list(extra))
    return DataLoader(source, batch_size=10, max_tokens=30, **arguments)


STUCK = threading.Event()
"""Set by a read that stands still."""


def stuck():
    STUCK.set()
    time.sleep(1000)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


# --------------------------------------------------------------------------------------------- stuck reads


class Results(queue.SimpleQueue):
    def get(self, block=True, timeout=None):
        while timeout is not None:
            still = STUCK.is_set()  # looked at first: what comes before it stands still is no late answer
            try:
                return super().get(timeout=0.05)
            except queue.Empty:
                if still:
                    raise
        return super().get(block)


@pytest.fixture
def time_passes_for_the_stuck(monkeypatch):
    """Time limits end for reads that stand still, and for none that a busy machine holds up."""
    wait = ReadingIterator._try_get_data

    def patient(self, timeout=None):
        while True:
            worker = self._task_info.get(self._rcvd_idx, (0,))[0]
            still = self.slates[worker].see().origin.endswith(f" {BAD}")
            success, found = wait(self, 0.5)
            if success or still:
                return success, found

    STUCK.clear()
    monkeypatch.setattr(ReadingIterator, "_try_get_data", patient)
    monkeypatch.setattr(
        "loaders.workers.timed.queue", SimpleNamespace(SimpleQueue=Results, Empty=queue.Empty)
    )
    monkeypatch.setattr("loaders.balanced.ahead", lambda make, depth, *, timeout_s: ahead(make, depth))
    yield
    STUCK.clear()


@pytest.mark.usefixtures("time_passes_for_the_stuck")
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stuck_read_ends_in_time_and_names_source_and_row(num_workers):  # U59
    started = time.monotonic()
    told = r"timeout=5 s: .* was reading Doomed, sample 37 \(step 3, slot"
    with pytest.raises(WorkerError, match=told):
        list(doomed_loader(stuck, num_workers=num_workers, timeout=5))
    assert time.monotonic() - started < 500  # and not 1000


def test_batches_are_the_same_under_a_time_limit():
    def of(**arguments):
        return [(b.step, b.sample_ids.tolist(), b["input_ids"].tolist()) for b in make(**arguments)]

    def make(**arguments):
        return DataLoader(ArraySource(list(range(1, 40))), batch_size=4, max_tokens=64, **arguments)

    assert of(timeout=600) == of()
    assert of(timeout=600, pin_memory=True) == of()


def test_an_error_comes_through_the_time_limit_as_it_is():
    with pytest.raises(SampleError, match=r"Doomed, sample 37, stage read: ZeroDivisionError"):
        list(doomed_loader(lambda: 1 // 0, timeout=600))


@pytest.mark.usefixtures("time_passes_for_the_stuck")
def test_a_stuck_stream_names_the_sample():
    class Stream(IterableDataset):
        def __iter__(self):
            for row in range(ROWS):
                if row == 9:
                    stuck()
                yield list(range(5))

    with pytest.raises(SampleError, match=r"Stream, sample 9, stage stream: .* within timeout=5 s"):
        list(DataLoader(Stream(), batch_size=2, max_tokens=30, timeout=5))


@pytest.mark.usefixtures("time_passes_for_the_stuck")
def test_a_file_is_named_where_rows_are_read_together():
    class Stuck(ArraySource):
        def read(self, rows):
            if BAD in rows:
                stuck()
            return super().read(rows)

    source = Stuck([5] * ROWS, name="shard.parquet")
    with pytest.raises(WorkerError, match=r"was reading shard\.parquet, row 3\d \(step 3"):
        list(DataLoader(source, batch_size=10, max_tokens=30, timeout=5))


def test_a_plan_that_does_not_come_is_told():
    go_on = threading.Event()

    def plans():
        go_on.wait(1000)
        yield 1

    with pytest.raises(Late, match=r"no plan came within 0\.2 s\. Planning a step reads rows"):
        next(ahead(plans, 1, timeout_s=0.2))
    go_on.set()
    assert list(ahead(plans, 1, timeout_s=600)) == [1]


def test_a_call_is_left_behind_and_the_next_one_answered():
    call, go_on = Caller(600), threading.Event()
    assert call(lambda: 3) == 3
    call.timeout_s = 0.2
    with pytest.raises(CallLate):
        call(lambda: go_on.wait(1000))
    call.timeout_s = 600
    assert call(lambda: 4) == 4
    with pytest.raises(KeyError):
        call(lambda: {}["x"])
    go_on.set()


# ------------------------------------------------------------------------------------------------ the dead


def segfault():
    ctypes.string_at(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "how", "way_out"),
    [
        (killed, "was killed by signal: Killed", "when memory runs out"),
        (segfault, "was killed by signal: Segmentation fault", "faulthandler"),
        (lambda: os._exit(3), "exited unexpectedly with code 3", "num_workers=0 shows"),
    ],
)
def test_a_dead_worker_is_told_with_what_it_was_reading(what, how, way_out):  # U59
    with pytest.raises(WorkerError, match=r"Doomed, sample 37 \(step 3, slot") as caught:
        list(doomed_loader(what, num_workers=2))
    assert how in str(caught.value)
    assert way_out in str(caught.value)


def kill_when_at(batches, row):
    """Kill the first worker once it reads a row, as from elsewhere in the training loop."""
    for _ in range(6000):
        time.sleep(0.05)
        if batches._reading.slates[0].see().origin.endswith(f" {row}"):
            os.kill(batches._reading._workers[0].pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_worker_that_dies_while_the_loop_is_elsewhere_is_told_there():
    batches = iter(doomed_loader(stuck, num_workers=1, prefetch_factor=20))
    next(batches)
    with pytest.raises(WorkerError, match=r"killed by signal: Killed\. It was reading Doomed, sample 37"):
        kill_when_at(batches, BAD)


@pytest.mark.slow
def test_a_persistent_worker_that_dies_in_a_later_epoch_is_told():
    loader = doomed_loader(int, num_workers=1, persistent_workers=True)
    list(loader)
    batches = iter(loader)
    os.kill(batches._reading._workers[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="was killed by signal: Killed"):
        list(batches)


class Unsendable(Doomed):
    def __getitem__(self, row):
        return {"input_ids": np.arange(5), "extra": (lambda: 3) if row == BAD else 3}


@pytest.mark.slow
def test_a_batch_that_cannot_be_sent_ends_in_a_sentence_and_not_in_waiting():
    source = open_source(Unsendable(None), length=np.full(ROWS, 5), labels=False, carry=["extra"])
    with pytest.raises(
        WorkerError, match=r"could not send a batch: .*<lambda>.*must be something that pickle can send"
    ):
        list(DataLoader(source, batch_size=10, max_tokens=30, num_workers=2))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("name", ["collate_fn", "worker_init_fn", "the source Doomed"])
def test_an_argument_that_cannot_be_sent_to_workers_is_named(name, method):
    what = (lambda: 0) if name.startswith("the source") else int
    arguments = {} if name.startswith("the source") else {name: lambda given: {}}
    loader = doomed_loader(what, num_workers=1, multiprocessing_context=method, **arguments)
    with pytest.raises(WorkerError, match=rf"^{name} cannot be sent to workers, which .*'{method}'.*lambda"):
        iter(loader)


def test_each_end_of_a_worker_has_its_way_out():
    seen = Seen(busy=True, begun=True, step=7, slot=1, samples=12, origin="a.parquet, row 3", seconds=2.0)
    told = died(1, 99, -signal.SIGBUS, seen, "")
    assert told.startswith(
        "worker 1 (pid 99) was killed by signal: Bus error. It was reading a.parquet, row 3"
    )
    assert "--shm-size" in told
    assert "forkserver" in died(1, 99, -signal.SIGTERM, seen, "")
    assert "--shm-size" in died(1, 99, 77, seen, "RuntimeError: unable to allocate shared memory(shm)")
    idle = Seen(busy=False, begun=False, step=0, slot=0, samples=0, origin="no sample", seconds=0.0)
    assert "had not begun to read" in died(0, 99, None, idle, "")


# ------------------------------------------------------------------------------ training processes that end


ENOUGH_S = 300
"""For processes to end: far below the 1000 s that some of them sleep."""


def wait_until(condition):
    """Whether it holds in time."""
    give_up = time.monotonic() + ENOUGH_S
    while not (found := condition()) and time.monotonic() < give_up:
        time.sleep(0.05)
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def end(how, context, signum, folder, *, group):
    """Send a signal to a loop; its exit code, errors, processes that do not end, process ids."""
    folder.mkdir(exist_ok=True)
    loop = subprocess.Popen(
        [sys.executable, "-m", "tests.loaders.doomed", how, context],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pids = [int(pid) for pid in loop.stdout.readline().split()]
    assert len(pids) == 3, loop.communicate()[1]
    time.sleep(1)  # by now readers are mostly stuck, and pipes full
    if how == "tensors":
        # a worker that is killed between making such memory and taking its name off leaves it
        assert wait_until(lambda: stand_still(pids[1:]))
    (os.killpg if group else os.kill)(loop.pid, signum)
    code = loop.wait(ENOUGH_S)
    wait_until(lambda: not any(map(alive, pids)))
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return code, loop.communicate()[1], left, pids


def stand_still(pids):
    """Whether no thread of some processes has had anything to do for a while."""
    for _ in range(20):
        for stat in [path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/stat")]:
            if stat.read_text().rpartition(")")[2].split()[0] != "S":
                return False
        time.sleep(0.02)
    return True


def stale(pids, folder):
    """Names of shared memory and sockets that outlived their processes."""
    shared = [path.name for path in Path("/dev/shm").glob("torch_*") if int(path.name.split("_")[1]) in pids]
    return shared + [path.name for path in folder.iterdir() if path.name.startswith("pymp-")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "context", "group"),
    [
        ("slow", "fork", True),
        ("slow", "fork", False),
        ("stuck", "fork", True),
        ("tensors", "fork", True),
        ("slow", "spawn", True),
        ("slow", "forkserver", False),
    ],
)
def test_ctrl_c_ends_all_with_one_traceback(how, context, group, tmp_path):
    """``group``: sent to all processes, as a terminal does, or to the training process alone."""
    code, errors, left, pids = end(how, context, signal.SIGINT, tmp_path / "tmp", group=group)
    assert code == -signal.SIGINT
    assert left == []
    assert errors.count("Traceback") == 1, errors
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert stale(pids, tmp_path / "tmp") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "context"),
    [
        ("slow", "fork"),
        ("stuck", "fork"),
        ("unread", "fork"),
        ("tensors", "fork"),
        ("unread", "spawn"),
        ("slow", "forkserver"),
    ],
)
def test_a_hard_killed_parent_leaves_no_worker_no_memory_and_no_name(how, context, tmp_path):
    code, errors, left, pids = end(how, context, signal.SIGKILL, tmp_path / "tmp", group=False)
    assert code == -signal.SIGKILL
    assert left == []
    assert "Traceback" not in errors
    wait_until(lambda: not stale(pids, tmp_path / "tmp"))  # the fork server ends after its workers
    assert stale(pids, tmp_path / "tmp") == []


ENDLESS = 200_000
"""Samples that take some hours."""


class Slow(Dataset):
    def __len__(self):
        return ENDLESS

    def __getitem__(self, row):
        time.sleep(0.05)
        return {"input_ids": np.arange(20)}


def _train(begun):
    source = open_source(Slow(), length=np.full(ENDLESS, 20), labels=False)
    for _ in DataLoader(source, batch_size=4, max_tokens=400, num_workers=1):
        begun.set()


@pytest.mark.slow
def test_a_killed_rank_leaves_the_folder_of_the_process_that_started_it():
    folder = Path(util.get_temp_dir())
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    rank = context.Process(target=_train, args=(begun,))
    rank.start()
    assert begun.wait(600)
    children = f"/proc/{rank.pid}/task/{rank.pid}/children"
    workers = [int(pid) for pid in Path(children).read_text().split()]
    rank.kill()
    rank.join()
    assert workers
    assert wait_until(lambda: not any(map(alive, workers)))
    assert folder.is_dir()


FULL = """
mount -t tmpfs -o size=8m tmpfs /dev/shm || exit 42
exec "$0" -c '
import sys
import numpy as np, torch
from torch.utils.data import Dataset
from loaders import DataLoader, open_source
from loaders.workers.faults import WorkerError

class Large(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, row):
        return {"input_ids": np.arange(20), "x": torch.zeros(1_000_000)}

if "filled" in sys.argv:
    with open("/dev/shm/filled", "wb") as file:
        try:
            file.write(bytes(32 << 20))
        except OSError:
            pass
source = open_source(Large(), length=np.full(100, 20), labels=False, carry=["x"])
stack = lambda samples: {"x": torch.stack([sample["x"] for sample in samples])}
try:
    list(DataLoader(source, batch_size=10, max_tokens=400, num_workers=2, collate_fn=stack))
except WorkerError as error:
    print("told:", error)
' "$1"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "message"),
    [("small", "could not send a batch: RuntimeError: unable to"), ("filled", "workers cannot be started")],
)
def test_a_full_dev_shm_gets_a_sentence_with_the_way_out(state, message):
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare, to mount a small /dev/shm of its own")
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", FULL, sys.executable, state],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode in (1, 42) and "told:" not in done.stdout and "WorkerError" not in done.stderr:
        pytest.skip(f"cannot mount a small /dev/shm here: {done.stderr[-200:]}")
    assert f"told: {'worker' if state == 'small' else ''}" in done.stdout, done.stderr
    assert message in done.stdout
    assert "docker run --shm-size" in done.stdout


# ------------------------------------------------------------------------------------- forks and threads


def test_a_fork_waits_for_planning_threads_and_their_locks(monkeypatch):
    monkeypatch.setattr(forks, "LIMIT_S", 1000.0)
    gate, lock, begun = ForkGate(), threading.Lock(), threading.Event()

    def plan():
        with gate.working(), lock:
            begun.set()
            time.sleep(0.3)

    planner = threading.Thread(target=plan)
    planner.start()
    begun.wait()
    gate.before_fork()
    try:
        assert lock.acquire(blocking=False), "a child forked now would never get this lock"
        lock.release()
    finally:
        gate.after_fork()
    planner.join()


def test_a_planning_thread_may_fork_itself(monkeypatch):
    monkeypatch.setattr(forks, "LIMIT_S", 1000.0)
    gate = ForkGate()
    with gate.working():
        started = time.monotonic()
        gate.before_fork()
        gate.after_fork()
        assert time.monotonic() - started < forks.LIMIT_S / 2  # it waits for others only


@pytest.mark.slow
def test_workers_are_forked_while_another_loader_plans():
    """A second loader's workers start in the middle of the first one's planning, over and over."""
    rng = np.random.default_rng(0)
    source = ArraySource(rng.integers(1, 200, 4000).tolist())
    planning = iter(DataLoader(source, batch_size=256, max_tokens=2000, shuffle=True))
    for _ in range(15):
        next(planning)
        assert len(list(doomed_loader(int, num_workers=2))) == 12
        next(planning)


PARALLEL = """
import numba, numpy as np
from torch.utils.data import Dataset
from loaders import DataLoader, open_source
from loaders.workers.faults import WorkerError

numba.config.THREADING_LAYER = "omp"

@numba.njit(parallel=True)
def total(array):
    found = 0.0
    for at in numba.prange(array.size):
        found += array[at]
    return found

class Totals(Dataset):
    def __len__(self):
        return 20
    def __getitem__(self, row):
        return {"input_ids": np.arange(5) + int(total(np.ones(10)) > 0)}

if __name__ == "__main__":
    data = Totals()
    data[0]
    try:
        list(DataLoader(data, batch_size=5, max_tokens=30, num_workers=1, multiprocessing_context="fork"))
        print("no error")
    except WorkerError as error:
        print("told:", error)
"""


@pytest.mark.slow
def test_a_fork_after_parallel_numba_is_told_with_the_way_out():
    done = subprocess.run(
        [sys.executable, "-c", PARALLEL], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    if "no threading layer" in done.stderr.lower() or "no error" in done.stdout:
        pytest.skip("numba has no OpenMP here, or one that survives forks")
    assert "was killed by signal: Terminated. It was reading Totals, sample 0" in done.stdout, done.stderr
    assert 'multiprocessing_context="forkserver"' in done.stdout


# ----------------------------------------------------------------------------------------------- the slate


def test_a_slate_tells_the_row_of_the_right_source():
    first, second, inner = (ArraySource([3, 3, 3], name=name) for name in ("first", "second", "inner"))
    slate = Slate.here([first, second])
    assert slate.see().doing() == "had not begun to read"

    class Given:
        step, slot = 4, 1
        source, row = np.array([1, 1], np.int32), np.array([2, 0])

        def __len__(self):
            return 2

    write_on(slate)
    try:
        with slate.batch(Given()):
            told = r"was reading second, row 2 \(step 4, slot 1, 2 samples\) for \d+\.\d s"
            assert re.fullmatch(told, slate.see().doing())
            note(second, 0)
            note(inner, 1)  # a source that the second one reads from: its numbering is not known here
            assert slate.see().origin == "second, row 0"
        assert slate.see().doing() == "was done reading (step 4, slot 1, 2 samples, the first second, row 2)"
    finally:
        write_on(None)
    assert slate.cells.size == len(FIELDS)
