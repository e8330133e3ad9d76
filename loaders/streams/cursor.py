"""Where a loader over a stream stands, how that is saved, and how a stream is brought back to a place."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from loaders.sources.streams import keeps_exact_state
from loaders.state import check_version

logger = logging.getLogger(__name__)

VERSION = 2
"""1 has no ``skip`` and ``taken``, which only exchanging loaders need. Older versions are read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamCursor:
    """Where the next step comes from: a mark in this rank's stream, and what is done behind it."""

    epoch: int = 0
    step: int = 0
    """Finished steps, over all epochs."""
    drawn: int = 0
    """Samples that were drawn from the stream before the mark."""
    within: int = 0
    """Finished steps of the window that begins at the mark."""
    skip: int = 0
    """Samples behind the mark that finished steps hold; with exchange, in place of ``within``."""
    taken: int = 0
    """Usable samples of this rank's stream that finished steps hold; with exchange."""
    ended: bool = False
    """Whether the stream was found at its end: its own state may then be that of its beginning."""
    stream: Any = None
    """The stream's own state at the mark; ``None`` where it has none."""


def epoch_begin(cursor: StreamCursor, epoch: int) -> StreamCursor:
    """Where an epoch begins, as many steps on as ``cursor``."""
    return StreamCursor(epoch=epoch, step=cursor.step)


class Place:
    """A stream that can be brought back to a mark: by its own state, or by reading it again.

    Args:
        dataset: the stream.
        samples: what to iterate for its samples: the stream, or a loader with workers over it.
        in_process: whether it is read in this process, where it can be asked for its state.
    """

    def __init__(self, dataset: Any, samples: Callable[[], Iterable[Any]], *, in_process: bool) -> None:
        self.dataset = dataset
        self.samples = samples
        self.has_state = in_process and keeps_exact_state(dataset)
        if in_process and not self.has_state and hasattr(dataset, "state_dict"):
            logger.warning(
                "the state of %s leaves out samples that it holds in a shuffle buffer, so a resumed stream "
                "is read again from its beginning. Shuffle its files, or rows by number (open_source).",
                type(dataset).__name__,
            )

    def begin(self, epoch: int) -> None:
        """Tell the stream which epoch it is."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def state(self) -> Any:
        """The stream's own state behind the sample drawn last; ``None`` where it has none."""
        # a copy, since it must not follow the stream as it goes on
        return copy.deepcopy(self.dataset.state_dict()) if self.has_state else None

    def open(self, cursor: StreamCursor) -> Iterator[Any]:
        """The stream behind what is done: at the cursor's mark and ``skip`` samples on."""
        if cursor.ended:
            return iter(())
        behind = cursor.skip
        if self.has_state and cursor.stream is not None:
            self.dataset.load_state_dict(copy.deepcopy(cursor.stream))
        else:
            behind += cursor.drawn
        stream = iter(self.samples())
        for _ in islice(stream, behind):
            pass
        return stream


def stream_state(cursor: StreamCursor, identity: Mapping[str, Any]) -> dict[str, Any]:
    """A plain dict; of this rank's own stream, so every rank saves its own."""
    return {
        "version": VERSION,
        "kind": "stream",
        **{name: getattr(cursor, name) for name in StreamCursor.__slots__},
        "identity": dict(identity),
    }


def cursor_of_stream(state: Mapping[str, Any], identity: Mapping[str, Any]) -> StreamCursor:
    """The cursor of a saved state.

    Raises:
        ValueError: a state of another kind, version, rank or division into steps; says what differs.
    """
    version = state.get("version")
    if state.get("kind") != "stream" or version is None:
        raise ValueError(
            "this is not a state of a loader over a stream: keys version and kind='stream' must be there, "
            f"got {sorted(map(str, state))}."
        )
    check_version(version, VERSION)
    saved = state["identity"]
    names = sorted({*identity, *saved})
    differing = [name for name in names if saved.get(name) != identity.get(name)]
    if differing:
        detail = "; ".join(
            f"{name} was {saved.get(name, 'not given')!r}, is {identity.get(name, 'not given')!r}"
            for name in differing
        )
        raise ValueError(
            f"the state belongs to another stream or other steps: {detail}. Every rank loads the state that "
            "it saved, on as many ranks and workers, since each holds a place in a stream of its own; what "
            "a step has (batch_size, global_batch_size, step_tokens, window) must be the same too."
        )
    return StreamCursor(**{name: state[name] for name in StreamCursor.__slots__ if name in state})
