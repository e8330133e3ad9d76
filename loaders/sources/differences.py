"""Which files of a source have which columns: told where one of them cannot be read as the others are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loaders.sources.files import DataFile

MOST_FILES = 64
"""Files that are looked at: the message must not take longer than the reading would have."""
SHOWN_FILES = 3
SHOWN_COLUMNS = 8
MISSING = "(not there)"


def table_of_differences(
    files: Sequence[DataFile], types: Sequence[Mapping[str, str] | None], first: Sequence[str] = ()
) -> str:
    """A line for each type of each column in which files differ, with the first files that have it.

    Args:
        files: those that were looked at.
        types: type of each column of each of them; ``None``: unknown, such a file is left out.
        first: columns to tell before the others.

    Returns:
        Lines, or nothing where no two files differ.
    """
    known = [(file.path, columns) for file, columns in zip(files, types, strict=True) if columns is not None]
    names = dict.fromkeys([*first, *(name for _, columns in known for name in columns)])
    lines: list[str] = []
    differing = 0
    for name in names:
        by_type: dict[str, list[str]] = {}
        for path, columns in known:
            by_type.setdefault(columns.get(name, MISSING), []).append(path)
        if len(by_type) < 2:
            continue
        differing += 1
        if differing <= SHOWN_COLUMNS:
            lines += [f"  {name}: {kind} in {_some(paths)}" for kind, paths in by_type.items()]
    if differing > SHOWN_COLUMNS:
        lines.append(f"  and {differing - SHOWN_COLUMNS} more columns")
    return "\n".join(lines)


def _some(paths: Sequence[str]) -> str:
    more = len(paths) - SHOWN_FILES
    return ", ".join(paths[:SHOWN_FILES]) + (f" and {more} more" if more > 0 else "")
