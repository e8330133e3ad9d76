"""Forks wait until this process's planning threads stand still.

A child that is forked while another thread holds a lock (that of numba's compiler, of an import, of the
allocator) never gets it: it stands still at its first use. So planning threads work inside `working`, and a
fork, by whatever code, begins when none of them does.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

LIMIT_S = 30.0
"""A fork waits no longer: a plan takes milliseconds, so a thread that is busy this long is stuck."""


class _Mine(threading.local):
    depth = 0


class ForkGate:
    """Counts the threads at work; see the module."""

    def __init__(self) -> None:
        self._idle = threading.Condition(threading.Lock())
        self._at_work = 0
        self._mine = _Mine()

    @contextmanager
    def working(self) -> Iterator[None]:
        """While this is entered no other thread forks; at most a step's planning at a time."""
        with self._idle:
            self._at_work += 1
        self._mine.depth += 1
        try:
            yield
        finally:
            self._mine.depth -= 1
            with self._idle:
                self._at_work -= 1
                self._idle.notify_all()

    def before_fork(self) -> None:
        """Wait for the others and keep them from beginning until `after_fork`."""
        self._idle.acquire()
        # what this thread itself is at work on does not stand still, and holds no lock that it has not
        if not self._idle.wait_for(lambda: self._at_work <= self._mine.depth, timeout=LIMIT_S):
            logger.warning(
                "a process is forked while a planning thread has been busy for %d s; its copy may stand "
                "still. Start workers by multiprocessing_context='forkserver' where planning takes so long.",
                LIMIT_S,
            )

    def after_fork(self) -> None:
        """In the parent."""
        self._idle.release()

    def after_fork_in_child(self) -> None:
        """The child has this thread alone."""
        self._idle = threading.Condition(threading.Lock())
        self._at_work = self._mine.depth


GATE = ForkGate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=GATE.before_fork,
        after_in_parent=GATE.after_fork,
        after_in_child=GATE.after_fork_in_child,
    )
