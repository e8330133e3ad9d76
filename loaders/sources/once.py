"""Long preparation, done by one of all processes that share a folder while the others wait.

Waiting uses no collective, so that none can time out: whoever waits polls a small file beside the result. Its
owner writes a running number into it, so that a file that stands still tells of a process that died,
whichever machine it ran on and whatever the clocks say. Locks of the file system are not used: not all
networked ones have them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

BEAT_S = 2.0
LIMIT_S = 30.0
"""An owner that says nothing for so long has died. Long kernels and compilers may hold up its thread. The
time is that of pauses between looks: where the whole machine stood still, nobody was silent."""
POLL_S = (0.02, 1.0)
"""Between two looks at the file: at first, and later."""
TOLD_S = (3.0, 60.0)
"""Waiting until the first word on it, and between two."""
SHORT_S = 1.0
"""What takes less may be done by every process, and its errors are told by every process itself."""
RECORD_BYTES = 1024
ERRORS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (ValueError, TypeError, OSError)}
"""Errors that those who waited raise again as what they are; all others as RuntimeError."""
Result = TypeVar("Result")

_owned: ContextVar[_Lock | None] = ContextVar("_owned", default=None)


def once(place: Path, what: str, look: Callable[[], Result | None], make: Callable[[], Result]) -> Result:
    """What ``look`` finds; else what ``make`` gives, which one process alone runs.

    Args:
        place: where the result is kept; files beside it, of its name with another end, say who is at work.
        what: is made, for messages.
        look: gives the kept result, or None. It never sees a part of one: ``make`` must put it there whole.
        make: makes and keeps it.

    A folder that cannot be written, and a maker that does not keep its result, leave the work to each
    process. Where the maker dies, another takes over: at once on the same machine, else `LIMIT_S` after its
    last word.

    Raises:
        Exception: what ``make`` raised, on those who waited for it too (see `ERRORS`).
    """
    found = look()
    if found is not None:
        return found
    waiting = _Waiting(place, what)
    while True:  # looking at the result may cost much; at the owner's file it costs little
        try:
            number, record = _newest(place)
            if record is None:
                if waiting.token is not None:  # its owner is done: with a result, an error, or neither
                    return _after(waiting, look, make)
                number = 0
            elif not waiting.is_lost(record):
                if record:  # else it is being written, and does not say yet who is waited for
                    waiting.tell(record)
                time.sleep(waiting.pause())
                continue
            else:
                number += 1
                logger.warning("%s: %s has died; process %d goes on.", what, _who(record), os.getpid())
            lock = _Lock(place, number)
        except FileExistsError:  # another was quicker
            continue
        except OSError:
            return make()
        return lock.run(look, make)


def progress(done: int, total: int) -> None:
    """Tell those who wait how far the work of this thread is."""
    lock = _owned.get()
    if lock is not None:
        lock.record["done"], lock.record["total"] = done, total


def _after(waiting: _Waiting, look: Callable[[], Result | None], make: Callable[[], Result]) -> Result:
    found = look()
    if found is not None:
        return found
    told = _read(_failure(waiting.place))
    if told is not None and told.get("token") == waiting.token:
        kind = ERRORS.get(told["kind"], RuntimeError)
        name = "" if kind.__name__ == told["kind"] else f"{told['kind']}: "
        raise kind(f"{name}{told['text']} ({waiting.what}: found by {_who(told)}, for which this one waited)")
    return make()


class _Lock:
    """The right to make what belongs at a place; ``number`` counts owners that died before.

    Raises FileExistsError where another has it, OSError where the folder cannot be written.
    """

    def __init__(self, place: Path, number: int) -> None:
        self.place, self.number = place, number
        self.record: dict[str, Any] = {"token": uuid.uuid4().hex, "beat": 0, "done": 0, "total": 0}
        self.record |= _process(os.getpid())
        place.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(_path(place, number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        try:
            os.write(handle, self._content())
        finally:
            os.close(handle)
        self._stop = threading.Event()

    def run(self, look: Callable[[], Result | None], make: Callable[[], Result]) -> Result:
        """Look once more, then make. Another may have finished between the last look and the lock."""
        begin = time.monotonic()
        heart = threading.Thread(target=self._beat, name="evenload-once", daemon=True)
        token = _owned.set(self)
        try:
            found = look()
            if found is not None:
                return found
            heart.start()
            with contextlib.suppress(OSError):
                os.unlink(_failure(self.place))
            return make()
        except Exception as error:
            if time.monotonic() - begin >= SHORT_S:
                self._tell(error)
            raise
        finally:
            _owned.reset(token)
            self._stop.set()
            if heart.ident is not None:
                heart.join()
            self._leave()

    def _beat(self) -> None:
        path = _path(self.place, self.number)
        while not self._stop.wait(BEAT_S):
            self.record["beat"] += 1
            with contextlib.suppress(OSError):
                if not self._is_mine():
                    return
                with open(path, "r+b") as file:  # opened each time: closing sends it over a network
                    file.write(self._content())

    def _tell(self, error: Exception) -> None:
        told = {**self.record, "kind": type(error).__name__, "text": str(error)}
        partial = self.place.with_name(f".{self.place.name}.{self.record['token']}")
        with contextlib.suppress(OSError):
            partial.write_text(json.dumps(told))
            os.replace(partial, _failure(self.place))

    def _leave(self) -> None:
        with contextlib.suppress(OSError):
            if self._is_mine():
                for number in range(self.number + 1):
                    with contextlib.suppress(OSError):
                        os.unlink(_path(self.place, number))

    def _is_mine(self) -> bool:
        record = _read(_path(self.place, self.number))
        return record is not None and record.get("token") == self.record["token"]

    def _content(self) -> bytes:
        return json.dumps(self.record).encode().ljust(RECORD_BYTES)


class _Waiting:
    """What one who waits has seen so far."""

    def __init__(self, place: Path, what: str) -> None:
        self.place, self.what = place, what
        self.token: str | None = None
        """Of the owner that is waited for."""
        self._begin = time.monotonic()
        self._silent_s = 0.0
        self._beat: Any = None
        self._next_word = self._begin + TOLD_S[0]
        self._pauses = self._paused()

    def is_lost(self, record: dict[str, Any]) -> bool:
        """Whether the owner has died."""
        beat = record.get("token"), record.get("beat")
        if beat != self._beat:
            self._beat, self._silent_s = beat, 0.0
        self.token = record.get("token", self.token)
        return self._silent_s > LIMIT_S or _is_gone(record)

    def tell(self, record: dict[str, Any]) -> None:
        """Say now and then who is waited for."""
        now = time.monotonic()
        if now < self._next_word:
            return
        self._next_word = now + TOLD_S[1]
        done = f", {record['done']} of {record['total']} done" if record.get("total") else ""
        logger.warning(
            "%s: process %d has waited %.0f s for %s%s. It is done once for all that share %s.",
            self.what,
            os.getpid(),
            now - self._begin,
            _who(record),
            done,
            self.place.parent,
        )

    def pause(self) -> float:
        """Seconds until the next look."""
        pause = next(self._pauses)
        self._silent_s += pause
        return pause

    @staticmethod
    def _paused() -> Iterator[float]:
        pause, longest = POLL_S
        while True:
            yield pause
            pause = min(1.5 * pause, longest)


def _newest(place: Path) -> tuple[int, dict[str, Any] | None]:
    """The last of the owners' files, and what it says; ``(-1, None)`` without any."""
    number, newest = -1, None
    while (record := _read(_path(place, number + 1))) is not None:
        number, newest = number + 1, record
    return number, newest


def _read(path: Path) -> dict[str, Any] | None:
    """None: no such file. A file that is being written says nothing yet."""
    try:
        with open(path, "rb") as file:
            return dict(json.loads(file.read()))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}


def _path(place: Path, number: int) -> Path:
    return place.with_name(f"{place.name}.{number}.lock")


def _failure(place: Path) -> Path:
    return place.with_name(f"{place.name}.failed")


def _who(record: dict[str, Any]) -> str:
    return f"process {record.get('pid', '?')} on {record.get('host', '?')}"


@functools.cache
def _process(pid: int) -> dict[str, Any]:
    """What this process says of itself; kept, since a thousand sources would ask as often."""
    return {"host": socket.gethostname(), "pid": pid, "here": _here(), "started": _started(pid)}


def _is_gone(record: dict[str, Any]) -> bool:
    """Whether the owner ran here, where one can look, and does no longer."""
    here = _here()
    return bool(here) and record.get("here") == here and _started(record["pid"]) != record["started"]


@functools.cache
def _here() -> str:
    """Names this machine since its last start and this space of process numbers; empty where unknown."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _started(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None: it has ended, or nothing is known."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    return None
