"""Reading in this process under a time limit: in a thread, so that a read that never ends can be left."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from torch.utils.data import Dataset

from loaders.batches.collate import Packed
from loaders.batches.shares import Share
from loaders.workers.faults import WorkerError, timed_out
from loaders.workers.reading import Noted
from loaders.workers.slate import Slate, write_on

T = TypeVar("T")


class Late(RuntimeError):
    """A call did not return within the time."""


class Caller:
    """Calls functions, one at a time, in a thread that is left behind when one of them does not return.

    A hand-over to the thread and back takes some 30 microseconds.

    Args:
        timeout_s: how long a call may take.
        begin: called in each new thread.
    """

    def __init__(self, timeout_s: float, begin: Callable[[], None] = lambda: None) -> None:
        self.timeout_s = timeout_s
        self.begin = begin
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] | None = None
        self._results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def __call__(self, function: Callable[[], T]) -> T:
        """What ``function`` returns or raises. Raises Late if it does neither within the time."""
        if self._calls is None:
            self._calls, self._results = queue.SimpleQueue(), queue.SimpleQueue()
            threading.Thread(
                target=_run, args=(self.begin, self._calls, self._results), name="evenload-read", daemon=True
            ).start()
        self._calls.put(function)
        try:
            value, error = self._results.get(timeout=self.timeout_s)
        except queue.Empty:
            self._calls.put(None)  # should it ever return, it ends there
            self._calls = None
            raise Late(f"no answer within {self.timeout_s:g} s") from None
        if error is not None:
            raise error
        result: T = value
        return result

    def __del__(self) -> None:
        if self._calls is not None:
            self._calls.put(None)

    def __getstate__(self) -> dict[str, Any]:
        """Threads stay where they are."""
        return {**self.__dict__, "_calls": None, "_results": None}


def _run(
    begin: Callable[[], None],
    calls: queue.SimpleQueue[Callable[[], Any] | None],
    results: queue.SimpleQueue[tuple[Any, BaseException | None]],
) -> None:
    begin()
    while (function := calls.get()) is not None:
        try:
            results.put((function(), None))
        except BaseException as error:  # raised again where it was called for
            results.put((None, error))
        del function


class TimedReader(Dataset[Packed]):
    """A reader whose batches must come within a time. Raises WorkerError with what it was reading."""

    def __init__(self, reader: Any, timeout_s: float) -> None:
        self.reader = Noted(reader)
        self.timeout_s = timeout_s
        self.slate = Slate.here(reader.sources)
        self._call = Caller(timeout_s, lambda: write_on(self.slate))

    def __getitem__(self, share: Share) -> Packed:
        try:
            return self._call(lambda: self.reader[share])
        except Late:
            raise WorkerError(timed_out(self.timeout_s, None, None, self.slate.see())) from None


class TimedStream(Iterable[T]):
    """A stream whose samples must come within a time each. Raises WorkerError otherwise."""

    def __init__(self, stream: Iterable[T], timeout_s: float) -> None:
        self.stream = stream
        self.timeout_s = timeout_s

    def __iter__(self) -> Iterator[T]:
        call = Caller(self.timeout_s)
        try:
            samples = call(lambda: iter(self.stream))
            while (found := call(lambda: next(samples, _END))) is not _END:
                yield found  # type: ignore[misc]
        except Late:
            raise WorkerError(
                f"no sample came within timeout={self.timeout_s:g} s. Raise timeout if the stream is slow."
            ) from None


_END = object()
