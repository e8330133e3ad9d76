"""Files in memory without a descriptor: a mapping outlives the file that it was made from."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

import pyarrow as pa

PROT_READ, MAP_SHARED = 1, 1
"""The same numbers on Linux and macOS."""


class _Mapping:
    """Unmaps when nothing refers to it any more."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self._unmap = _libc().munmap

    def __del__(self) -> None:
        self._unmap(ctypes.c_void_p(self.address), ctypes.c_size_t(self.size_bytes))


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    return libc


def map_file(path: str) -> pa.Buffer:
    """The file's bytes, read-only, paged in when they are touched.

    Python's own mmap, and Arrow's and numpy's with it, keep a descriptor for every mapping: a thousand
    files would need a thousand. The descriptor is not needed once the mapping is there.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return pa.py_buffer(b"")
        address = _libc().mmap(None, size, PROT_READ, MAP_SHARED, file.fileno(), 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return pa.foreign_buffer(address, size, base=_Mapping(address, size))
