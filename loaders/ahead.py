"""Run an iterator in a background thread, a few items ahead of its consumer."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from loaders.workers.forks import GATE

T = TypeVar("T")

POLL_S = 0.1
"""How long the thread may notice late that its consumer has gone."""


@dataclass(frozen=True, slots=True, eq=False)
class _End:
    error: BaseException | None


class Late(RuntimeError):
    """A plan did not come within the time."""


def ahead(make: Callable[[], Iterator[T]], depth: int, *, timeout_s: float = 0) -> Iterator[T]:
    """The items of ``make()``, computed up to ``depth`` items before they are asked for.

    A plan that is not there within ``timeout_s`` (0: whenever it comes) raises `Late`.

    The thread starts with the first item that is asked for, so worker processes that were forked before
    that never inherit it, and it ends with this generator, also when that is closed half-way. An exception
    of the iterator is raised here, in its turn.
    """
    if depth < 1:
        yield from make()
        return
    items: queue.Queue[Any] = queue.Queue(depth)
    stop = threading.Event()
    end = _End(None)
    process = os.getpid()

    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                items.put(item, timeout=POLL_S)
                return True
            except queue.Full:
                continue
        return False

    def run() -> None:
        try:
            made = make()
            while True:
                with GATE.working():
                    item = next(made, end)
                if not put(item) or item is end:
                    return
        except BaseException as error:  # handed to the consumer, who raises it
            put(_End(error))

    def take() -> Any:
        if os.getpid() != process:
            raise RuntimeError(
                f"this iteration was begun in process {process}, and a forked process lacks the thread that "
                "plans its steps. Iterate over the loader anew."
            )
        try:
            return items.get(timeout=timeout_s or None)
        except queue.Empty:
            raise Late(
                f"no plan came within {timeout_s:g} s. Planning a step reads rows where labels are masked "
                "and long samples are split: the storage may stand still. Raise timeout if it is only slow."
            ) from None

    thread = threading.Thread(target=run, name="evenload-plan-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := take(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stop.set()
