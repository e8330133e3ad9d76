"""Unpacked copies of files without random access: compressed ones, and remote ones that are read whole."""

from __future__ import annotations

import shutil
import tempfile

import pyarrow as pa

from loaders.sources.cache import BoundedCache
from loaders.sources.files import DataFile
from loaders.sources.mapping import map_file

COPIES = BoundedCache[pa.Buffer](32 << 30, lambda copy: copy.size)
"""Copies of this process, at most 32 GiB of the temporary folder; the files have no name any more."""
STEP_BYTES = 1 << 20


def unpacked_copy(file: DataFile) -> pa.Buffer:
    """The content of a file, mapped from a temporary file that goes when nobody needs it."""
    return COPIES.get(file, lambda: _copied(file))


def _copied(file: DataFile) -> pa.Buffer:
    with tempfile.NamedTemporaryFile(prefix="evenload-") as copy:
        with file.open_unpacked() as opened:
            shutil.copyfileobj(opened, copy, STEP_BYTES)
        copy.flush()
        return map_file(copy.name)
