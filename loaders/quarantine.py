"""Samples and media that could not be used: counted, written down, and not too many of them."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Protocol

logger = logging.getLogger(__name__)

SHOWN = 5
"""Rejects that are logged one by one; later ones are only counted and written down."""


class TooManyRejects(RuntimeError):
    """More was rejected than the run may lose."""


class Reject(Protocol):
    """A dataclass that names its row; its fields are written down."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def source(self) -> str: ...
    @property
    def row(self) -> int: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedMedium:
    """One medium, and with it its sample."""

    source: str
    row: int
    kind: str
    index: int
    """The how-manieth of its kind in the sample, from 0; -1 where the sample as a whole is at fault."""
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source}, row {self.row}, {self.kind} {self.index} ({self.path}): {self.reason}"


@dataclass(kw_only=True)
class Quarantine:
    """Collects rejects of one process. Appending whole lines lets several processes share the file.

    A row counts once, however often it is read.
    """

    path: str | None = None
    """JSON lines are appended here."""
    max_bad: int | float = 0.1
    """Rows that may be rejected before the run stops: a number, or a share of all rows."""
    num_rows: int = 0
    """Rows of the source, for shares."""
    what: str = "media that cannot be used"
    setting: str = "max_bad"
    """How the user calls the budget."""
    rejected: dict[tuple[str, int], Reject] = field(default_factory=dict)
    """First reject of each row of a source."""

    @property
    def limit(self) -> int:
        """Rows that may be rejected; at least one where a share is given."""
        if isinstance(self.max_bad, float):
            return max(int(self.max_bad * self.num_rows), 1)
        return self.max_bad

    def add(self, medium: Reject) -> None:
        """Count one, and stop the run when they are too many.

        Raises:
            TooManyRejects: more rows than `limit` were rejected.
        """
        if (medium.source, medium.row) in self.rejected:
            return
        self.rejected[medium.source, medium.row] = medium
        if len(self.rejected) <= SHOWN:
            logger.warning("rejected: %s", medium)
        if self.path is not None:
            line = json.dumps(asdict(medium), ensure_ascii=False) + "\n"
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
        if len(self.rejected) > self.limit:
            raise TooManyRejects(
                f"{len(self.rejected)} of {self.num_rows} rows of {medium.source} have {self.what}, more "
                f"than the {self.limit} allowed ({self.setting}={self.max_bad}). The last: {medium}. "
                f"Repair the data, or raise {self.setting}."
            )
