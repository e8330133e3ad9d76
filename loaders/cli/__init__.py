"""The ``evenload`` command. A subcommand imports what it needs when it runs: ``--help`` is quick."""

from loaders.cli.app import main

__all__ = ["main"]
