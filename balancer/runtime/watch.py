"""A rank that dies, fails or lags becomes a sentence on all ranks that names it.

Every rank tells the job's store now and then that it lives and where it stands in the step, and listens
to one neighbour; whoever notices something writes one verdict that all read. So a rank's own traffic does
not grow with the job.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .protocol import RunnableBatch

logger = logging.getLogger(__name__)

LOST_PEER_WORDS = ("gloo", "nccl", "connection closed", "connection reset", "timed out", "broken pipe")


class Mark(NamedTuple):
    """How far a rank is; later marks are larger."""

    step: int
    last_in_step: bool
    slot: int
    finished: bool

    def __str__(self) -> str:
        if self.step < 0:
            return "before its first micro-batch"
        return f"{'behind' if self.finished else 'in'} step {self.step}, slot {self.slot}"


class Watch:
    """Look after the ranks of the default process group. Use as a context manager around training.

    ``with watch.micro_batch(batch):`` around forward and backward turns the obscure error of a collective
    whose peer has gone into a RuntimeError that names the rank. A verdict is logged on every rank as soon as
    it is known; under NCCL it also aborts the collective that waits, under gloo the process group's own
    timeout ends it.

    Args:
        limit_s: a rank that stands still for so long, while others wait, is named as lagging.
        silence_s: a process without sign of life for so long counts as dead.
        interval_s: seconds between signs of life.
    """

    def __init__(self, limit_s: float = 600.0, silence_s: float = 30.0, interval_s: float = 2.0) -> None:
        if not 0 < interval_s < silence_s:
            raise ValueError(
                f"interval_s must lie between 0 and silence_s, got {interval_s:g} and {silence_s:g}."
            )
        self.limit_s, self.silence_s, self.interval_s = limit_s, silence_s, interval_s
        self._mark = Mark(-1, False, -1, True)
        self._since = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._verdict: str | None = None

    def __enter__(self) -> Watch:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self._store = _own_connection()
        self._tell()
        self._thread = threading.Thread(target=self._look_after, name="evenload-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=self.interval_s + 1.0)
        if error[0] is None:
            self._store.set(f"end/{self.rank}", "1")

    @contextmanager
    def micro_batch(self, batch: RunnableBatch) -> Iterator[None]:
        """Around forward and backward of one micro-batch."""
        place = (batch.step, batch.last_in_step, batch.slot)
        self._set(Mark(*place, finished=False))
        try:
            yield
        except Exception as error:
            if not _is_lost_peer(error):
                text = f"{type(error).__name__}: {error}".splitlines()[0]
                self._judge(f"rank {self.rank} failed {self._mark}: {text}")
                raise
            raise RuntimeError(self._wait_for_verdict(error)) from error
        self._set(Mark(*place, finished=True))

    def _set(self, mark: Mark) -> None:
        self._mark, self._since = mark, time.monotonic()

    def _look_after(self) -> None:
        neighbour = (self.rank + 1) % self.ranks
        heard, heard_at = "", time.monotonic()
        while not self._stop.wait(self.interval_s):
            try:
                self._tell()
                self._read_verdict()
                if self._verdict is not None:
                    return
                words = self._read(f"life/{neighbour}")
                if words != heard or self._read(f"end/{neighbour}"):
                    heard, heard_at = words, time.monotonic()
                elif time.monotonic() - heard_at > self.silence_s:
                    self._judge(f"rank {neighbour} is gone: last seen {_mark_of(heard)}")
                # asked also while the neighbour is heard: a neighbour that lives may be the one that lags
                if time.monotonic() - self._since > self.limit_s:
                    self._judge_laggards()
            except Exception as error:  # the store is gone, and with it the process that holds it
                self._announce(f"the job's store no longer answers ({error}); the rank that holds it is gone")
                return

    def _tell(self) -> None:
        self._store.set(f"life/{self.rank}", json.dumps([*self._mark, time.time()]))

    def _read(self, key: str) -> str:
        if not self._store.check([key]):
            return ""
        return bytes(self._store.get(key)).decode()

    def _judge(self, verdict: str) -> None:
        try:
            # the first verdict stands: later ones are its consequences
            first = bytes(self._store.compare_set("verdict", "", verdict)).decode()
        except Exception:
            first = verdict
        self._announce(first or verdict)

    def _judge_laggards(self) -> None:
        marks = [_mark_of(self._read(f"life/{rank}")) for rank in range(self.ranks)]
        least = min(marks)
        if least == max(marks):
            return  # all stand at the same place: a long step, or not to be told apart
        lagging = [rank for rank, mark in enumerate(marks) if mark == least]
        if self.rank in lagging:
            return  # whoever waits decides
        waited = time.monotonic() - self._since
        self._judge(f"ranks {lagging} lag: {least} while others are {max(marks)} for {waited:.3g} s")

    def _read_verdict(self) -> None:
        if self._verdict is None and (verdict := self._read("verdict")):
            self._announce(verdict)

    def _announce(self, verdict: str) -> None:
        if self._verdict is not None:
            return
        self._verdict = verdict
        logger.error("rank %d: %s", self.rank, verdict)
        if "nccl" in dist.get_backend() and torch.cuda.is_available():
            world: Any = dist.group.WORLD
            world.abort()

    def _wait_for_verdict(self, error: Exception) -> str:
        deadline = time.monotonic() + self.silence_s + 3 * self.interval_s
        while self._verdict is None and time.monotonic() < deadline:
            time.sleep(self.interval_s / 4)
        if self._verdict is None:  # the collective gave up before limit_s: say who is behind all the same
            with suppress(Exception):  # the store may be gone as well
                self._judge_laggards()
        reason = self._verdict or f"a peer was lost, none could be found to be gone: {error}"
        return f"rank {self.rank} cannot go on {self._mark}: {reason}. Restart from the last checkpoint."


_watches = 0


def _own_connection() -> Any:
    """The job's store under a prefix of this watch; its own connection where the store can be cloned."""
    global _watches
    _watches += 1
    store: Any = dist.distributed_c10d._get_default_store()
    with suppress(AttributeError, NotImplementedError, RuntimeError):
        store = store.clone()
    return dist.distributed_c10d.PrefixStore(f"evenload/watch/{_watches}", store)


def _mark_of(words: str) -> Mark:
    if not words:
        return Mark(-1, False, -1, True)
    step, last, slot, finished, _ = json.loads(words)
    return Mark(step, last, slot, finished)


def _is_lost_peer(error: Exception) -> bool:
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in LOST_PEER_WORDS)
