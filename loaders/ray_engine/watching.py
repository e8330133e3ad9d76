"""Whether the cluster is still there, looked after beside training."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

import ray

LOOK_S = 5.0
SILENCE_S = 30.0
"""A head that has not answered for so long is lost. Ray itself ends the process after 60 s."""


class Watch:
    """Asks the head now and then, in a thread that ends with this object."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.heard = time.monotonic()
        self.node_lives = True
        self._stop = threading.Event()
        thread = threading.Thread(target=_run, args=(weakref.ref(self), self._stop), daemon=True)
        thread.start()

    def check(self) -> None:
        """Raise ConnectionError when the head or this node is lost."""
        silent = time.monotonic() - self.heard
        if silent > SILENCE_S:
            raise ConnectionError(
                f"the head of the Ray cluster has not answered for {silent:.0f} s. " + RESUME
            )
        if not self.node_lives:
            raise ConnectionError(
                f"the Ray cluster has given this process's node {self.node[:12]} up: its raylet has ended, "
                "or could not be reached. " + RESUME
            )

    def __del__(self) -> None:
        self._stop.set()


RESUME = (
    "Save what has been trained: Ray ends processes that stay without a head. Training can go on from the "
    'loader\'s state, on any cluster or with engine="local".'
)


def _run(reference: Any, stop: threading.Event) -> None:
    while not stop.wait(LOOK_S):
        watch = reference()
        if watch is None:
            return
        node = watch.node
        del watch
        try:
            lives = any(one["NodeID"] == node and one["Alive"] for one in ray.nodes())
        except Exception:  # whatever it is called: no answer
            continue
        watch = reference()
        if watch is None:
            return
        watch.heard, watch.node_lives = time.monotonic(), lives
        del watch
