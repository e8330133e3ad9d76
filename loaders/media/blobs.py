"""Where a medium's bytes lie: a path or URL, bytes, an open file, or a dict of ``bytes`` and ``path``."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from loaders.media.errors import MediaError

Blob = Any
"""str, PathLike, bytes-like, an open binary file, or ``{"bytes": ..., "path": ...}`` as `datasets` stores
them."""


def name_of(blob: Blob) -> str:
    """What messages call it: its path, or how many bytes it has."""
    if isinstance(blob, Mapping):
        return str(blob["path"]) if blob.get("path") else name_of(blob.get("bytes") or b"")
    if isinstance(blob, str | os.PathLike):
        return os.fspath(blob)
    if isinstance(blob, bytes | bytearray | memoryview):
        return f"<{len(blob)} bytes>"
    return str(getattr(blob, "name", type(blob).__name__))


@contextmanager
def opened(blob: Blob) -> Iterator[BinaryIO]:
    """The bytes as a seekable file, at its beginning. Files that were open already stay open.

    Raises:
        MediaError: there is no such file, it has no bytes, or the value is none of the known kinds.
    """
    if isinstance(blob, Mapping):
        if not {"bytes", "path"} & set(blob):
            raise MediaError(
                f"a dict must have 'bytes' or 'path', it has {', '.join(map(str, blob)) or 'nothing'}"
            )
        blob = blob["bytes"] if blob.get("bytes") is not None else blob.get("path")
    if isinstance(blob, bytes | bytearray | memoryview):
        if len(blob) == 0:
            raise MediaError("it has 0 bytes")
        yield io.BytesIO(blob)
    elif isinstance(blob, str | os.PathLike):
        with _open_path(os.fspath(blob)) as file:
            yield file
    elif hasattr(blob, "read") and hasattr(blob, "seek"):
        blob.seek(0)
        yield cast(BinaryIO, blob)
    else:
        raise MediaError(
            f"a medium must be a path, bytes, an open binary file, or a dict of 'bytes' and 'path'; "
            f"it is {type(blob).__name__}"
        )


def _open_path(path: str) -> BinaryIO:
    try:
        if "://" in path:
            import fsspec

            return cast(BinaryIO, fsspec.open(path, "rb").open())
        file = io.BufferedReader(io.FileIO(path))
    except OSError as error:
        raise MediaError(f"it cannot be opened ({error.strerror or error})") from None
    if os.fstat(file.fileno()).st_size == 0:
        file.close()
        raise MediaError("it has 0 bytes")
    return file


def size_bytes(file: BinaryIO) -> int:
    """Bytes of an open file; its position is kept."""
    here = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(here)
    return end
