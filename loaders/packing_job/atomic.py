"""Files that are there whole or not at all, and failures of the disk in a sentence."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to; it becomes ``path`` when the block ends well, and goes away when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # a process id is not enough: two machines that share a folder may use the same one
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}.partial")
    try:
        with told_about(path):
            yield partial
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def told_about(path: Path) -> Iterator[None]:
    """Say what a full disk or a missing permission means, with the path."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RuntimeError(
                f"{path}: the disk is full. What is finished is kept: make room and run again with --resume."
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise RuntimeError(f"{path}: no permission to write here ({error.strerror}).") from None
        raise


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file at once."""
    with whole_file(path) as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> Any:
    """The content, or None when there is no such file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def sha256(path: Path) -> str:
    """Digest of a file, as ``sha256sum`` prints it."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
