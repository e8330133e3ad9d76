"""Errors of other processes, raised here: what failed first, then one sentence, and nothing in between."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnschedulableError,
    NodeDiedError,
    RayActorError,
    RayTaskError,
)

GONE = (RayActorError, ActorUnschedulableError, NodeDiedError)
"""An actor that died or cannot be reached; of one whose node went, Ray may say that it cannot be placed."""
ENDED = (ActorDiedError, ActorUnschedulableError, NodeDiedError)
"""Those of them that do not come back by themselves."""
LISTEN_S = 120.0
"""To answers that nobody waits for any more."""
_TRACE = "_evenload_trace"


class Elsewhere(Exception):
    """A traceback of another process, shown above the error that came of it."""


@contextmanager
def remembered() -> Iterator[None]:
    """Let errors take along where they were raised: on the way to another process they lose it."""
    try:
        yield
    except Exception as error:
        if not hasattr(error, _TRACE):
            with suppress(AttributeError, TypeError):  # of a class without a place for it
                setattr(error, _TRACE, _place_of(error))
        raise


def raise_here(error: RayTaskError) -> NoReturn:
    """Raise what was raised in the other process, with the place as its cause where it is known."""
    reason: Exception = error.cause
    place = getattr(reason, _TRACE, None)
    raise reason from (None if place is None else Elsewhere(place))


def dismiss(references: Iterable[Any]) -> None:
    """Wait no longer for answers: one that turns out to be an error is heard in silence.

    Of errors that nobody has looked at, Ray prints each with its whole history, after the one that was told.
    """
    left = list(references)
    if left:
        with suppress(RuntimeError):  # the program is ending
            threading.Thread(target=_listen, args=(left,), daemon=True).start()


def _listen(references: list[Any]) -> None:
    while references:
        if not ray.is_initialized():  # asking would start a cluster
            return
        reference = references.pop()
        with suppress(Exception):
            ray.wait([reference], timeout=LISTEN_S, fetch_local=False)
            ray.get(reference, timeout=0)


def _place_of(error: Exception) -> str:
    """The traceback of what failed first; its own message is left out where it is told anyway."""
    first: BaseException = error
    while first.__cause__ is not None:
        first = first.__cause__
    if first is error:
        lines = ["Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__)]
    else:
        lines = traceback.format_exception(first)
    return "in another process\n" + "".join(lines).rstrip()
