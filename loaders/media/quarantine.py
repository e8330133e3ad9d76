"""Media that could not be used: counted, written down, and not too many of them."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass, field

logger = logging.getLogger(__name__)

SHOWN = 5
"""Rejects that are logged one by one; later ones are only counted and written down."""


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
    rejected: dict[int, RejectedMedium] = field(default_factory=dict)
    """First reject of each row."""

    @property
    def limit(self) -> int:
        """Rows that may be rejected; at least one where a share is given."""
        if isinstance(self.max_bad, float):
            return max(int(self.max_bad * self.num_rows), 1)
        return self.max_bad

    def add(self, medium: RejectedMedium) -> None:
        """Count one, and stop the run when they are too many.

        Raises:
            RuntimeError: more rows than `limit` were rejected.
        """
        if medium.row in self.rejected:
            return
        self.rejected[medium.row] = medium
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
            raise RuntimeError(
                f"{len(self.rejected)} of {self.num_rows} rows of {medium.source} have media that cannot be "
                f"used, more than the {self.limit} allowed (max_bad={self.max_bad}). The last: {medium}. "
                "Repair the data, or raise max_bad."
            )
