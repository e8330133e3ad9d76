"""Files whose content is damaged, told apart from files that cannot be reached at the moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from loaders.sources.files import DataFile

Result = TypeVar("Result")


class BrokenFile(ValueError):
    """The content of a file cannot be read, now or later, on this rank or another."""


def told(file: DataFile, part: str, action: Callable[[], Result]) -> Result:
    """Do it, and name the file when it cannot be read.

    Raises:
        BrokenFile: its content is damaged; a copy that was cut short is the usual reason.
        OSError: it cannot be reached: missing, forbidden, or a failing disk or network.
    """
    try:
        return action()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # Arrow's own and ours have no number
            raise
        reason = str(error).strip().split("\n")[0][:200]
        raise BrokenFile(
            f"{file.path}: the {part} cannot be read ({reason}). The file has {file.size_bytes} bytes; "
            "a copy that was cut short looks like this. Write it again, or leave it out."
        ) from None
