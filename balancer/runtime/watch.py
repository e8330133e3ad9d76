"""A rank that dies, fails or lags becomes a sentence on all ranks that names it.

Every rank tells the job's store now and then that it lives, where it stands in the step and for how long,
and listens to one neighbour; whoever notices something writes one verdict that all read. So a rank's own
traffic does not grow with the job.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .members import default_store, fresh_name
from .protocol import RunnableBatch
from .world import process_rank

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


BEFORE_ALL = Mark(-1, False, -1, True)


class Sign(NamedTuple):
    """What a rank tells of itself; a new one differs from the last."""

    mark: Mark
    stood_s: float
    """Seconds since it came there."""
    number: int

    @classmethod
    def read(cls, words: str) -> Sign:
        """A rank that has told nothing yet stands before everything, for nobody knows how long."""
        if not words:
            return cls(BEFORE_ALL, math.inf, 0)
        *mark, stood_s, number = json.loads(words)
        return cls(Mark(*mark), stood_s, number)

    def write(self) -> str:
        """The words of `read`."""
        return json.dumps([*self.mark, self.stood_s, self.number])


class Watch:
    """Look after the ranks of the default process group. Use as a context manager around training.

    ``with watch.micro_batch(batch):`` around forward and backward turns the obscure error of a collective
    whose peer has gone into a RuntimeError that names the rank. A verdict is logged on every rank as soon as
    it is known; under NCCL it also aborts the collective that waits, under gloo the process group's own
    timeout ends it. One process alone is not watched.

    Args:
        limit_s: a rank that stands still for so long, while others wait as long, is named as lagging.
        silence_s: a process that has spoken once and then gives no sign of life for so long counts as dead;
            one that has not begun to, for ``limit_s``. Counted in turns of ``interval_s``, so that a machine
            which stands still as a whole blames nobody.
        interval_s: seconds between signs of life.
    """

    def __init__(self, limit_s: float = 600.0, silence_s: float = 30.0, interval_s: float = 2.0) -> None:
        if not 0 < interval_s < silence_s:
            raise ValueError(
                f"interval_s must lie between 0 and silence_s, got {interval_s:g} and {silence_s:g}."
            )
        if not limit_s > 0:
            raise ValueError(f"limit_s must be above 0, got {limit_s:g}.")
        self.limit_s, self.silence_s, self.interval_s = limit_s, silence_s, interval_s
        self._thread: threading.Thread | None = None
        self._begin(0, 1, None)

    def _begin(self, rank: int, ranks: int, store: Any) -> None:
        self.rank, self.ranks, self._store = rank, ranks, store
        # one attribute: the thread must not see a new mark with the time of the one before
        self._place = BEFORE_ALL, time.monotonic()
        self._stop = threading.Event()
        self._verdict: str | None = None
        self._number = 0
        self._neighbour, self._heard, self._quiet_turns = (rank + 1) % ranks, "", 0

    def __enter__(self) -> Watch:
        if self._thread is not None:
            raise RuntimeError(
                "this Watch is at work already: leave its with block before it is entered again."
            )
        process = process_rank()
        if process is None or process[1] == 1:
            self._begin(0, 1, None)
            return self
        self._begin(*process, _own_connection(process[1]))
        self._tell()
        self._thread = threading.Thread(
            target=self._look_after, args=(self._stop,), name="evenload-watch", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=self.interval_s + 1.0)
            self._thread = None
        if self._store is None:
            return
        if error is None:
            with suppress(Exception):  # a rank that has ended before may have taken the store along
                self._tell()
                self._store.set(f"end/{self.rank}", "1")
        elif self._verdict is None and not _is_lost_peer(error):
            self._judge_own(error)

    @contextmanager
    def micro_batch(self, batch: RunnableBatch) -> Iterator[None]:
        """Around forward and backward of one micro-batch."""
        place = (batch.step, batch.last_in_step, batch.slot)
        self._set(Mark(*place, finished=False))
        try:
            yield
        except Exception as error:
            if self._store is None:
                raise
            if not _is_lost_peer(error):
                self._judge_own(error)
                raise
            raise RuntimeError(self._wait_for_verdict(error)) from error
        self._set(Mark(*place, finished=True))

    def _set(self, mark: Mark) -> None:
        self._place = mark, time.monotonic()

    def _look_after(self, stop: threading.Event) -> None:
        try:
            while self._verdict is None and not stop.wait(self.interval_s):
                self._turn()
        except Exception as error:
            self._lose_store(error, stop)

    def _turn(self) -> None:
        self._tell()
        if told := self._read("verdict"):
            self._announce(told)
            return
        self._listen()
        # asked also while the neighbour is heard: a neighbour that lives may be the one that lags
        waits = time.monotonic() - self._place[1] > self.limit_s
        if waits and (verdict := self._laggards(self.limit_s)):
            self._judge(verdict)

    def _tell(self) -> None:
        mark, since = self._place
        self._number += 1
        sign = Sign(mark, time.monotonic() - since, self._number)
        self._store.set(f"life/{self.rank}", sign.write())

    def _listen(self) -> None:
        while self._neighbour != self.rank and self._read(f"end/{self._neighbour}"):
            # it has ended as it should and listens no more: whom it listened to is ours now
            self._neighbour, self._heard, self._quiet_turns = (self._neighbour + 1) % self.ranks, "", 0
        if self._neighbour == self.rank:
            return
        words = self._read(f"life/{self._neighbour}")
        if words != self._heard:
            self._heard, self._quiet_turns = words, 0
            return
        self._quiet_turns += 1
        patience_s = self.silence_s if words else max(self.silence_s, self.limit_s)
        if self._quiet_turns * self.interval_s > patience_s:
            seen = f"last seen {Sign.read(words).mark}" if words else "it has never been seen"
            self._judge(f"rank {self._neighbour} is gone: {seen}")

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

    def _judge_own(self, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        self._judge(f"rank {self.rank} failed {self._place[0]}: {text}")

    def _laggards(self, stood_s: float = 0.0) -> str | None:
        """What to say of the ranks farthest behind that stand there for longer; None where there are none."""
        signs = [Sign.read(self._read(f"life/{rank}")) for rank in range(self.ranks)]
        least, most = min(sign.mark for sign in signs), max(sign.mark for sign in signs)
        behind = [rank for rank, sign in enumerate(signs) if sign.mark == least]
        if least == most or self.rank in behind:
            return None  # a long step, or not to be told apart; and whoever waits decides
        left = [rank for rank in behind if self._read(f"end/{rank}")]
        lagging = left or [rank for rank in behind if signs[rank].stood_s > stood_s]
        if not lagging:
            return None  # slow, but on its way
        waited_s = time.monotonic() - self._place[1]
        verb = "have left" if left else "lag"
        return f"ranks {lagging} {verb}: {least} while others are {most} for {waited_s:.3g} s"

    def _announce(self, verdict: str) -> None:
        if self._verdict is not None:
            return
        self._verdict = verdict
        logger.error("rank %d: %s", self.rank, verdict)
        self._abort()

    def _lose_store(self, error: Exception, stop: threading.Event) -> None:
        verdict = f"the job's store no longer answers ({error}); the rank that holds it is gone"
        if self._place[0].finished:
            # perhaps that rank has only ended a little earlier: no trouble before something is asked of it
            logger.warning("rank %d is not watched any more: %s", self.rank, verdict)
            while self._place[0].finished:
                if stop.wait(self.interval_s):
                    return
        self._announce(verdict)

    def _abort(self) -> None:
        with suppress(Exception):  # the process group may have been destroyed
            if "nccl" in dist.get_backend() and torch.cuda.is_available():
                world: Any = dist.group.WORLD
                world.abort()

    def _wait_for_verdict(self, error: Exception) -> str:
        """The sentence for a collective that failed: the others need their time to find out why."""
        suspects = None
        # whoever listens to a dead rank takes silence_s and some turns
        patience_s, pause_s = 1.25 * self.silence_s + 4 * self.interval_s, self.interval_s / 4
        for pause in range(math.ceil(patience_s / pause_s)):
            if self._verdict is not None:
                break
            if pause == 8:  # by now all have told where they stood; later those behind may have caught up
                with suppress(Exception):
                    suspects = self._laggards()
            time.sleep(pause_s)
        if self._verdict is None and suspects:  # the collective gave up before limit_s
            self._judge(suspects)
        reason = self._verdict or f"a peer was lost, none could be found to be gone: {error}"
        return f"rank {self.rank} cannot go on {self._place[0]}: {reason}. Restart from the last checkpoint."


def _own_connection(ranks: int) -> Any:
    """The job's store under a prefix of this watch; its own connection where the store can be cloned."""
    name, store = fresh_name("watch", range(ranks)), default_store()
    with suppress(AttributeError, NotImplementedError, RuntimeError):
        store = store.clone()
    return dist.distributed_c10d.PrefixStore(name, store)


def _is_lost_peer(error: BaseException) -> bool:
    if isinstance(error, dist.DistError) or (error.__cause__ is not None and _is_lost_peer(error.__cause__)):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in LOST_PEER_WORDS)
