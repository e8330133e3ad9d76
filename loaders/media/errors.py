"""What is raised when a medium cannot be used."""

from __future__ import annotations


class MediaError(ValueError):
    """One medium is broken, too large or of an unknown kind; the text says which and why."""


def missing(library: str, extra: str) -> ImportError:
    """The error for an optional library that is not installed."""
    return ImportError(
        f"{library} is needed to read this medium and is not installed: pip install 'evenload[{extra}]'"
    )
