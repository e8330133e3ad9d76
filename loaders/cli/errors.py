"""Failures that a user can mend, told in a sentence."""

from __future__ import annotations

import os
import sys
import traceback

EXPECTED = (ValueError, OSError, RuntimeError, ImportError)


def report(error: Exception) -> None:
    """Print what went wrong; with EVENLOAD_TRACEBACK=1 also where."""
    if os.environ.get("EVENLOAD_TRACEBACK"):
        traceback.print_exception(error)
    sys.stderr.write(f"evenload: {error}\n")
