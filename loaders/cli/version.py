"""``evenload version``."""

from __future__ import annotations

import platform
import sys


def version_command() -> None:
    """Print the versions that matter in a bug report."""
    from importlib.metadata import PackageNotFoundError, version

    for name in ("evenload", "torch", "numpy", "numba", "pyarrow", "datasets"):
        try:
            found = version(name)
        except PackageNotFoundError:
            found = "not installed"
        sys.stdout.write(f"{name} {found}\n")
    sys.stdout.write(f"python {platform.python_version()} on {platform.platform()}\n")
