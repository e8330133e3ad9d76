"""Which micro-batch runs now, for code that a model library calls without telling it.

A process-wide value and not a context variable: backward passes on a GPU, and recomputation in them, run in
threads of autograd's own, which context variables do not reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .protocol import RunnableBatch

_running: list[RunnableBatch] = []


@contextmanager
def running(batch: RunnableBatch) -> Iterator[None]:
    """Around forward and backward of a micro-batch; `no_sync` does it too."""
    _running.append(batch)
    try:
        yield
    finally:
        _running.pop()


def current_batch() -> RunnableBatch | None:
    """The innermost batch in `running`, if any."""
    return _running[-1] if _running else None
