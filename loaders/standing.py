"""Where a loader stands, and which of its iterations moves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

OVERTAKEN = (
    "a state was loaded after this iteration had begun, which it cannot follow: its batches are those of "
    "another position. Iterate over the loader anew (for batch in loader) to go on at the state."
)
"""What an iteration says that is asked for more batches after that."""


class AnyCursor(Protocol):
    """A position in the data of all epochs."""

    @property
    def epoch(self) -> int:
        """Counted from 0."""
        ...


C = TypeVar("C", bound=AnyCursor)


class Standing(Generic[C]):
    """The cursor of a loader: an iteration runs to the end of an epoch, the next one over the epoch after it.

    Of several iterations the one that began last moves the cursor. One during which a state was loaded must
    not go on as if none had been.

    Args:
        cursor: where the loader begins.
        epoch_begin: the cursor of an epoch's begin, from any cursor and the epoch.
    """

    def __init__(self, cursor: C, epoch_begin: Callable[[C, int], C]) -> None:
        self.cursor = cursor
        self._epoch_begin = epoch_begin
        self._resumes = True
        """Whether the next iteration goes on at the cursor instead of beginning an epoch."""
        self._latest: object | None = None
        """Mark of the iteration that moves the cursor."""
        self._overtaken: object | None = None
        """Mark of the iteration during which a state was loaded."""

    def begin(self) -> C:
        """Where the next iteration begins: at a loaded state or a set epoch, else with a new epoch."""
        if not self._resumes:
            self.cursor = self._epoch_begin(self.cursor, self.cursor.epoch + 1)
        self._resumes = False
        return self.cursor

    def mark(self) -> object:
        """What names the iteration that begins now, and moves the cursor from here on."""
        self._latest = object()
        return self._latest

    def check(self, mark: object) -> None:
        """Raises RuntimeError where a state was loaded since the iteration began."""
        if self._overtaken is mark:
            raise RuntimeError(OVERTAKEN)

    def move(self, mark: object, cursor: C) -> None:
        """A step is done."""
        if self._latest is mark:
            self.cursor = cursor

    def finish(self, mark: object) -> None:
        """The epoch is used up: the next iteration begins the one after it."""
        if self._latest is mark:
            self._go_on_at(self._epoch_begin(self.cursor, self.cursor.epoch + 1))

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration run over ``epoch``; a state loaded in the middle of it is kept."""
        if not (self._resumes and epoch == self.cursor.epoch):
            self._go_on_at(self._epoch_begin(self.cursor, int(epoch)))

    def load(self, cursor: C) -> None:
        """Let the next iteration go on at a saved cursor."""
        self._overtaken = self._latest or self._overtaken
        self._go_on_at(cursor)

    def _go_on_at(self, cursor: C) -> None:
        self.cursor, self._resumes, self._latest = cursor, True, None
