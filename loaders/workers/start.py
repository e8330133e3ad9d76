"""What a reading worker sets up for itself before the user's own ``worker_init_fn``.

- It notes what it reads on a slate that the training process can see.
- It sends the tokens of its batches through memory that it shares with the training process.
- It leaves Ctrl-C to the training process, which then ends it; so no worker prints a traceback of its own.
- It ends with the training process, also when that was killed: a thread looks for it every second. Torch's
  own check comes between batches only, and a worker that is writing to a pipe which nobody reads stays.
- A batch that cannot be sent (it cannot be pickled, or /dev/shm is full) ends the worker with its last
  words. Python's queue would print a traceback and drop the batch, and the training process wait for ever.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.connection
import multiprocessing.queues
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing import util
from typing import Any, NoReturn

import torch.utils.data

from loaders.sources.base import Source
from loaders.workers.slate import FIELDS, Slate, write_on
from loaders.workers.slots import Slots, write_to

LOOK_S = 1.0
"""How long a worker may outlive the training process."""
WORDS = 2000
"""Bytes of the last words."""
FIRST = 1 << 20
"""Of what happens when a worker exits, before all else."""
SPEECHLESS = 77
"""Exit code of a worker that could not send its batch."""


class Desk(ctypes.Structure):
    """What a worker shares with the training process."""

    _fields_ = [("cells", ctypes.c_int64 * len(FIELDS)), ("words", ctypes.c_char * WORDS)]


class WorkerStart:
    """A ``worker_init_fn``.

    Args:
        desks: one `Desk` a worker, in shared memory.
        sources: by the numbers that shares use.
        then: the user's own ``worker_init_fn``.
        folder: `own_folder` of the training process.
        slots: memory for the workers' batches; ``None``: they go through the pipe.
    """

    def __init__(
        self,
        desks: Any,
        sources: Sequence[Source],
        then: Callable[[int], None] | None,
        folder: str | None,
        slots: Slots | None = None,
    ) -> None:
        self.desks = desks
        self.sources = sources
        self.then = then
        self.folder = folder
        self.slots = slots

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        watch = threading.Thread(
            target=_end_with_parent, args=(self.folder,), name="evenload-parent-watch", daemon=True
        )
        watch.start()
        util.Finalize(None, _end_if_left, args=(self.folder,), exitpriority=FIRST)
        desk = self.desks[worker]
        write_on(Slate(desk.cells, self.sources))
        write_to(self.slots, worker)
        _leave_words(desk)
        _stay_silent_when_left()
        if self.then is not None:
            self.then(worker)


def own_folder() -> str | None:
    """The folder of multiprocessing's sockets, made now if need be; ``None`` if it is a parent's.

    A process that multiprocessing started, such as a rank of ``torch.multiprocessing.spawn``, inherits its
    parent's folder, which must stay when the rank is killed.
    """
    process = multiprocessing.process.current_process()
    inherited = getattr(process, "_config", {}).get("tempdir")
    folder = str(util.get_temp_dir())
    return folder if multiprocessing.parent_process() is None or inherited is None else None


def _end_with_parent(folder: str | None) -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    first = os.getppid()  # under forkserver that of the server, which ends with the training process too
    while os.getppid() == first and not multiprocessing.connection.wait([parent.sentinel], timeout=LOOK_S):
        pass
    # no clean exit: it would wait for the pipe to be read
    _leave(folder)


def _end_if_left(folder: str | None) -> None:
    """Where torch's own check has ended the worker: others may have removed what a clean exit looks for."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        _leave(folder)


def _leave(folder: str | None) -> NoReturn:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _leave_words(desk: Desk) -> None:
    original = multiprocessing.queues.Queue._on_queue_feeder_error  # type: ignore[attr-defined]

    def said(error: BaseException, item: Any) -> None:
        is_batch = isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], int)
        if torch.utils.data.get_worker_info() is None or not is_batch:
            original(error, item)
            return
        desk.words = f"{type(error).__name__}: {error}".encode()[: WORDS - 1]
        os._exit(SPEECHLESS)

    multiprocessing.queues.Queue._on_queue_feeder_error = staticmethod(said)  # type: ignore[attr-defined]


def _stay_silent_when_left() -> None:
    """Print nothing where the training process, interrupted, hangs up on a thread that sends it a tensor."""
    original = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not issubclass(kind, BrokenPipeError | ConnectionResetError):
            original(kind, error, trace)

    sys.excepthook = hook
