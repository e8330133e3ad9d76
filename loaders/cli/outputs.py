"""Places that a command is asked to write to, looked at before the work begins."""

from __future__ import annotations

import os
from pathlib import Path

import typer

PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp", ".eps", ".ps", ".tif", ".tiff")


def check_output(path: Path | None, option: str, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse a place where no file can be written.

    Args:
        path: where to; ``None``: nothing is asked for.
        option: what the user calls it.
        suffixes: one of which the file must end in; empty: any name will do.

    Raises:
        typer.BadParameter: a folder, under a file, without permission, or of another suffix; says which.
    """
    if path is None:
        return
    if path == Path() or path.is_dir():
        raise typer.BadParameter(f"{option} must name a file to write, {path} is a folder.")
    if suffixes and path.suffix.lower() not in suffixes:
        from packing.checks import nearest

        hint = nearest(path.suffix, suffixes)
        raise typer.BadParameter(f"{option} must end in one of {', '.join(suffixes)}, got {path}.{hint}")
    above = next(folder for folder in path.parents if folder.exists())
    if not above.is_dir():
        raise typer.BadParameter(f"{option} {path}: {above} is a file, no folder. Choose another place.")
    if not os.access(path if path.exists() else above, os.W_OK):
        raise typer.BadParameter(f"{option} {path}: no permission to write there. Choose another place.")
