"""What an actor did: sums, rates of the last seconds, spans for a timeline. Needs neither Ray nor torch."""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass, field

SPANS = 20_000
"""Spans that an actor keeps, the latest: some 3 MB."""
WINDOW_S = 10.0
"""Rates are of so many seconds."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time."""

    kind: str
    """``read``, ``build`` or ``wait``."""
    label: str
    start_s: float
    """Seconds since the epoch."""
    seconds: float
    step: int


@dataclass(slots=True, eq=False)
class Rate:
    """Amounts of the last `WINDOW_S` seconds."""

    total: int = 0
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, amount: int, now: float) -> None:
        """Count ``amount`` at ``now`` (seconds of a monotonic clock)."""
        self.total += amount
        self._recent.append((now, amount))
        self._drop(now)

    def per_second(self, now: float) -> float:
        """Mean over the window."""
        self._drop(now)
        return sum(amount for _, amount in self._recent) / WINDOW_S

    def _drop(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - WINDOW_S:
            self._recent.popleft()


@dataclass(slots=True, eq=False)
class Spans:
    """The latest spans of a process."""

    _kept: deque[Span] = field(default_factory=lambda: deque(maxlen=SPANS))

    def add(
        self, kind: str, label: str, seconds: float, step: int = -1, start_s: float | None = None
    ) -> None:
        """Keep one that has just ended, or began at ``start_s``."""
        begun = time.time() - seconds if start_s is None else start_s
        self._kept.append(Span(kind, label, begun, seconds, step))

    def all(self) -> list[Span]:
        """Those kept, oldest first."""
        return list(self._kept)


def resident_bytes() -> int:
    """Memory of this process that is its own or shared; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
