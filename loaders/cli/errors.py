"""Failures that a user can mend, told in a sentence."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EXPECTED = (ValueError, OSError, RuntimeError, ImportError, OverflowError, MemoryError)


def report(error: Exception) -> None:
    """Print what went wrong; with EVENLOAD_TRACEBACK=1 also where."""
    if os.environ.get("EVENLOAD_TRACEBACK"):
        traceback.print_exception(error)
    sys.stderr.write(f"evenload: {sentence(error)}\n")


def sentence(error: Exception) -> str:
    """The message of an error; of the system's own, which begin with a number, the file and the reason."""
    if isinstance(error, MemoryError):
        reason = f" ({error})" if str(error) else ""
        return f"the memory does not suffice{reason}. Check the numbers given, or give less data at once."
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror[:1].lower()}{error.strerror[1:]}."
    return str(error)


@contextmanager
def told_warnings() -> Iterator[None]:
    """Print the project's own warnings as sentences too, without the line of code that gave them."""
    show = warnings.showwarning

    def tell(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if category.__module__.partition(".")[0] in ("packing", "balancer", "loaders"):
            sys.stderr.write(f"evenload: {message}\n")
        else:
            show(message, category, *where, **more)

    with warnings.catch_warnings():
        warnings.showwarning = tell
        yield
