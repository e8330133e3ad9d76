"""Readers come and go with the work: one rank looks every few seconds at what comes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayTaskError

from loaders.ray_engine.plane import Plane
from loaders.ray_engine.profile import Pace, Profile
from loaders.ray_engine.raised import GONE
from loaders.ray_engine.routing import Table, allot, readers_wanted, relieved

logger = logging.getLogger(__name__)

LOOK_S = 2.0
"""Between two looks."""
SHRINK_LOOKS = 5
"""Readers that are too many for so many looks on end are ended: starting one takes seconds."""


@dataclass(eq=False)
class Scaler:
    """Decides on readers for the whole job, in the process of the first rank.

    Args:
        plane: where readers are started, and builders told of them.
        profile: what reading costs; it learns from all builders, and belongs to this alone.
        coming: gives the tokens of each source, [n], that a coming step needs.
    """

    plane: Plane
    profile: Profile
    coming: Callable[[], NDArray[np.float64]]
    readers: int = 1
    table: Table = ()
    steps: int = 0
    """Finished since the last look."""
    wait_s: float = 0.0
    """Waited for batches since then, by the rank that waited longest."""
    _pace: Pace = field(default_factory=Pace)
    _looked: float = field(default_factory=time.monotonic)
    _too_many: int = 0
    _surplus: list[str] = field(default_factory=list)
    _first: bool = True
    _looking: threading.Thread | None = None
    _asked: list[Any] = field(default_factory=list)

    def beat(self) -> None:
        """Look if it is time to, beside training, which must not wait for the cluster's head."""
        due = self._first or (time.monotonic() - self._looked >= LOOK_S and self.steps > 0)
        if due and (self._looking is None or not self._looking.is_alive()):
            coming = self.coming()  # here, since orders are not made for several threads
            self._looking = threading.Thread(target=self._try, args=(coming,), daemon=True)
            self._looking.start()

    def _try(self, coming: NDArray[np.float64]) -> None:
        try:
            self.look(coming)
        except Exception:  # training goes on with the readers there are
            logger.warning("the number of readers could not be looked after", exc_info=True)

    def look(self, coming: NDArray[np.float64]) -> None:
        """Change the readers if they do not fit the tokens of each source, [n], that a coming step needs."""
        now = time.monotonic()
        self._learn()
        load = self.profile.load_s(coming)
        heavy = load > load.sum() / 2
        uneven = bool(heavy.any() and not heavy.all())
        # one more than there are CPUs where the reader of light sources is idle most of the time
        most = max(1, int(ray.cluster_resources().get("CPU", 1))) + uneven
        if self._first:  # nothing is known of the pace, but media and text are not read by one process
            wanted = 2 if uneven and _is_media(self.plane) else 1
        else:
            self._pace.add(seconds=now - self._looked, waited=self.wait_s, steps=self.steps)
            wanted = readers_wanted(load, compute_s=self._pace.compute_s, most=most)
        self._settle(wanted, load)
        self._looked, self.steps, self.wait_s, self._first = now, 0, 0.0, False

    def _learn(self) -> None:
        """What all ranks have read, and how long they waited, until the last look.

        The first one alone may never see an image, and it waits for the others, which wait for theirs.
        """
        done = ray.wait(self._asked, num_returns=len(self._asked), timeout=0)[0] if self._asked else []
        for reference in done:
            with suppress(*GONE, RayTaskError):
                costs, waits = ray.get(reference)
                self.wait_s = max(self.wait_s, *waits.values(), 0.0)
                tokens, seconds, sizes = ({n: cost[at] for n, cost in costs.items()} for at in range(3))
                self.profile.add(tokens, seconds, sizes)
        self._asked = self.plane.costs()

    def _settle(self, wanted: int, load: NDArray[np.float64]) -> None:
        actors = self.plane.actors
        self._too_many = self._too_many + 1 if wanted < self.readers else 0
        if wanted < self.readers and self._too_many < SHRINK_LOOKS:
            wanted = self.readers
        trimmed: frozenset[int] = frozenset()
        if wanted != self.readers or not self.table:
            logger.info("%d readers instead of %d", wanted, self.readers)
            self.readers, self._too_many = wanted, 0
            before, self.table = self.table, allot(load, wanted)
            trimmed = relieved(before, self.table)
        actors.claim(self, self.readers)
        unclaimed = actors.unclaimed()
        for name in unclaimed:
            if name in self._surplus:  # the builders have been told a look ago
                actors.end(name)
        self._surplus = unclaimed
        readers = [actors.get(f"{actors.readers}{at}") for at in range(self.readers)]
        self.plane.route(self.table)  # again, since a builder that was started anew knows nothing
        for at, reader in enumerate(readers):
            if at in trimmed:
                reader.trim.remote()


def _is_media(plane: Plane) -> bool:
    return any(not source.divisible for source in plane.reader.sources)
