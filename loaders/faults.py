"""Samples that cannot be read: named with where they come from, counted and written down."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from loaders.quarantine import Quarantine, TooManyRejects

if TYPE_CHECKING:
    from loaders.sources.base import Source

ON_ERROR = ("raise", "skip")
"""What may happen when a sample cannot be read."""


class SampleError(RuntimeError):
    """Code that makes a sample failed. The message says which sample and at which stage.

    It is made of one text, so that it keeps its type on the way from a worker process to this one. Where the
    original error is a `KeyError` and the like, this is one too, so that whoever catches those still does.
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class SampleKeyError(SampleError, KeyError):
    """An entry is missing."""


class SampleIndexError(SampleError, IndexError):
    """An index is out of range."""


class SampleValueError(SampleError, ValueError):
    """A value cannot be used."""


class SampleTypeError(SampleError, TypeError):
    """A value is of the wrong kind."""


class SampleOSError(SampleError, OSError):
    """A file cannot be read."""


KINDS: tuple[tuple[type[Exception], type[SampleError]], ...] = (
    (KeyError, SampleKeyError),
    (IndexError, SampleIndexError),
    (ValueError, SampleValueError),
    (TypeError, SampleTypeError),
    (OSError, SampleOSError),
)


def named(message: str, error: Exception) -> SampleError:
    """A `SampleError` that is also of the kind of ``error``."""
    kind = next((ours for theirs, ours in KINDS if isinstance(error, theirs)), SampleError)
    return kind(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One sample that was skipped: a line of the quarantine file."""

    source: str
    row: int
    """Row of the source; of a whole file that was left out ``-1 - number of the file``."""
    origin: str
    """Where the row comes from, as the source names it."""
    stage: str
    """``"open"``: when files were; ``"length"``: when lengths were counted; ``"read"``: when a batch was."""
    error: str
    """Type of the error."""
    reason: str
    trace: str
    """The error's own traceback."""

    def __str__(self) -> str:
        return f"{self.origin}, stage {self.stage}: {self.error}: {self.reason}"


def fault_of(source: Source, row: int, stage: str, error: BaseException) -> Fault:
    """What is known of a failure."""
    return Fault(
        source=source.name,
        row=row,
        origin=source.origin(row),
        stage=stage,
        error=type(error).__name__,
        reason=str(error),
        trace="".join(traceback.format_exception(type(error), error, error.__traceback__)),
    )


def must_stop(error: BaseException) -> bool:
    """Errors that no budget covers: they say nothing of a sample."""
    return isinstance(error, TooManyRejects | MemoryError)


def raise_named(source: Source, row: int, stage: str, error: Exception) -> NoReturn:
    """Raise ``error``, with the sample named: as it is where its message names the sample already."""
    if must_stop(error) or isinstance(error, SampleError) or source.origin(row) in str(error):
        raise error
    raise named(
        f"{source.origin(row)}, stage {stage}: {type(error).__name__}: {error}. Repair the sample or the "
        'code that makes it, or pass on_error="skip" to go on without such samples.',
        error,
    ) from error


def open_quarantine(
    sources: Sequence[Source],
    max_errors: int | float,
    path: str | None,
    *,
    writes_lengths: bool,
    lost: Sequence[Fault] | None = None,
) -> Quarantine:
    """Where a loader's skipped samples go; those whose length could not be found are in it already.

    Args:
        sources: of the loader.
        max_errors: rows that may be skipped: a number, or a share of all rows.
        path: of the JSON lines.
        writes_lengths: whether this process writes the rows that all processes find when they open the data.
        lost: those rows, where another process has looked the sources' lengths up.

    Raises:
        TooManyRejects: there are more than allowed already.
    """
    quarantine = Quarantine(
        path=path if writes_lengths else None,
        max_bad=max_errors,
        num_rows=sum(len(source) for source in sources),
        what="samples that cannot be read",
        setting="max_errors",
    )
    if lost is None:
        lost = [fault for source in sources for fault in without_length(source)]
    for fault in lost:
        quarantine.add(fault)
    quarantine.path = path
    return quarantine


def without_length(source: Source) -> list[Fault]:
    """Rows left out when lengths were counted, and files when they were opened, as the source tells."""
    told: Sequence[Any] = source.rejects() if hasattr(source, "rejects") else ()
    if not told or isinstance(told[0], Fault):
        return list(told)
    return [
        Fault(
            source=source.name,
            row=reject.row,
            origin=reject.origin,
            stage="length" if reject.row >= 0 else "open",
            error="ValueError",
            reason=reject.reason,
            trace="",
        )
        for reject in told
    ]
