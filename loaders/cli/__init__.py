"""The ``evenload`` command. A subcommand imports what it needs when it runs: ``--help`` is quick."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command."""
    try:
        from loaders.cli.app import main as run

        run()
    except KeyboardInterrupt:  # while modules were being imported
        sys.exit(130)
