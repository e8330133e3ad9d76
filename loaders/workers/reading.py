"""Torch's loader over shares, beneath a balanced one, with its failures told in full."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.multiprocessing
import torch.utils.data
from torch.utils.data import Dataset, _utils, dataloader

from loaders.batches.collate import Packed
from loaders.batches.shares import Share
from loaders.sources.base import Source
from loaders.workers.faults import WorkerError, cannot_start, died, pids_in, timed_out
from loaders.workers.slate import Slate, current
from loaders.workers.slots import Slots, open_slots
from loaders.workers.start import Desk, WorkerStart, own_folder

TOKEN_BYTES = 12
"""A token in a slot: its id in 4 bytes, and a label in 8."""
GRACE_S = 2.0
"""Workers that are still reading are given so long at the end of an iteration; torch gives 5 s to each."""


class Noted(Dataset[Packed]):
    """A reader whose batches are noted on the slate of the thread that reads them."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    @property
    def sources(self) -> Sequence[Source]:
        """By the numbers that shares use."""
        sources: Sequence[Source] = self.reader.sources
        return sources

    @property
    def capacity(self) -> int:
        """Tokens of the largest micro-batch; 0 where that is not known."""
        reader = getattr(self.reader, "language", self.reader)
        capacity: int = getattr(reader, "capacity", 0)
        return capacity

    def __getitem__(self, share: Share) -> Packed:
        slate = current()
        with contextlib.nullcontext() if slate is None else slate.batch(share):
            packed: Packed = self.reader[share]
        return packed


class ReadingLoader(torch.utils.data.DataLoader[Any]):
    """Workers, pinning and prefetching are torch's; what happens to workers is told with what they read."""

    def check_worker_number_rationality(self) -> None:
        """The loader above has warned already."""

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return super()._get_iterator()
        context = self.multiprocessing_context or torch.multiprocessing.get_context()
        folder = own_folder()  # one folder of sockets for all workers
        theirs = self.worker_init_fn
        sources = getattr(self.dataset, "sources", ())
        try:
            desks = context.RawArray(Desk, self.num_workers)
            slots = self._slots()
            self.worker_init_fn = WorkerStart(desks, sources, theirs, folder, slots)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Got pickle error")  # it is told below, with a name
                return ReadingIterator(self, desks, sources, slots)
        except Exception as error:
            arguments = {
                **{f"the source {source.name}": source for source in sources},
                "collate_fn": getattr(getattr(self.dataset, "reader", None), "collate_fn", None),
                "dataset": self.dataset,
                "worker_init_fn": theirs,
            }
            told = cannot_start(error, arguments, context.get_start_method())
            if told is None:
                raise
            raise WorkerError(told) from error
        finally:
            self.worker_init_fn = theirs

    def _slots(self) -> Slots | None:
        """One for each batch that a worker may have read, and for the one that is being laid out."""
        most_tokens: int = getattr(self.dataset, "capacity", 0)
        return open_slots(self.num_workers, (self.prefetch_factor or 2) + 1, most_tokens * TOKEN_BYTES)


class ReadingIterator(dataloader._MultiProcessingDataLoaderIter):
    """Torch's iterator over worker processes, whose errors say what was being read."""

    def __init__(
        self, loader: ReadingLoader, desks: Any, sources: Sequence[Source], slots: Slots | None
    ) -> None:
        self._shutdown = True  # what torch's destructor looks at if this fails half-way
        self.desks = desks
        self.slots = slots  # messages of workers only name them
        self.slates = [Slate(desk.cells, sources) for desk in desks]
        super().__init__(loader)
        RUNNING.add(self)
        watch_children()

    def _get_data(self) -> Any:
        try:
            parent: Any = super()
            return parent._get_data()
        except RuntimeError as error:
            told = self.told(error)
            if told is None:
                raise
            raise WorkerError(told) from error
        except (OSError, EOFError) as error:  # a worker hung up while it handed over a tensor
            gone = self.gone()
            if not gone:
                raise
            raise WorkerError(self.story_of(gone[0])) from error

    def gone(self) -> list[int]:
        """Workers that have ended; the first one may take a moment to do so."""
        multiprocessing.connection.wait([process.sentinel for process in self._workers], timeout=GRACE_S)
        return [worker for worker, process in enumerate(self._workers) if not process.is_alive()]

    def story_of(self, worker: int) -> str:
        """How a worker ended, and at what."""
        process, words = self._workers[worker], self.desks[worker].words.decode(errors="replace")
        return died(worker, process.pid, process.exitcode, self.slates[worker].see(), words)

    def told(self, error: RuntimeError) -> str | None:
        """The sentence for one of torch's errors; ``None`` where it is about something else."""
        if isinstance(error, WorkerError):
            return None
        pids = [process.pid for process in self._workers]
        if "timed out after" in str(error):
            task = self._task_info.get(self._rcvd_idx, (0,))
            return timed_out(self._timeout, task[0], pids[task[0]], self.slates[task[0]].see())
        for pid in pids_in(str(error)):
            if pid in pids:
                return self.story_of(pids.index(pid))
        return None

    def _shutdown_workers(self) -> None:
        if self._shutdown or _utils is None or _utils.python_exit_status is not False:
            return  # the interpreter ends, and with it its daemons; its modules may be gone already
        if self._worker_pids_set:  # from here on a worker that ends is none that died
            torch._C._remove_worker_pids(id(self))
            self._worker_pids_set = False
        late = threading.Timer(GRACE_S, _end, [list(self._workers)])
        late.daemon = True
        with contextlib.suppress(RuntimeError):  # no thread starts while the interpreter ends
            late.start()
        try:
            super()._shutdown_workers()
        finally:
            late.cancel()


def _end(workers: Sequence[Any]) -> None:
    for worker in workers:
        if worker.is_alive():
            worker.terminate()


RUNNING: weakref.WeakSet[ReadingIterator] = weakref.WeakSet()


def watch_children() -> None:
    """Let the error that torch raises when a worker dies, wherever this process is then, say what it read."""
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread has signal handlers; others look every 5 s
    theirs = signal.getsignal(signal.SIGCHLD)
    if callable(theirs) and not isinstance(theirs, _ChildWatch):
        signal.signal(signal.SIGCHLD, _ChildWatch(theirs))


class _ChildWatch:
    def __init__(self, theirs: Callable[[int, Any], Any]) -> None:
        self.theirs = theirs

    def __call__(self, signum: int, frame: Any) -> None:
        try:
            self.theirs(signum, frame)
        except RuntimeError as error:
            for iterator in list(RUNNING):
                told = iterator.told(error)
                if told is not None:
                    raise WorkerError(told) from error
            raise
