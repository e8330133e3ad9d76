"""The one way our kernels are compiled."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba

NUMBERED = ".{number:d}.nbc"
"""How numba ends the names of the files with compiled code."""


@dataclass(frozen=True)
class FreshNames:
    """Stands for numba's pattern of file names: every name is a new one."""

    base: str

    def format(self, number: int) -> str:
        """The number says nothing."""
        return f"{self.base}.{uuid.uuid4().hex}.nbc"


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a bare loop: single-threaded, without the GIL, lazily, cached on disk where that is possible.

    ``cache=True`` raises at decoration when neither the source folder nor the home folder is
    writable; then the kernel compiles once a process instead of failing the import.
    """

    def decorate(python_function: Callable[..., Any]) -> Any:
        try:
            compiled = numba.njit(nogil=True, cache=True, **options)(python_function)
        except RuntimeError:
            return numba.njit(nogil=True, **options)(python_function)
        name_afresh(compiled)
        return compiled

    return decorate if function is None else decorate(function)


def name_afresh(compiled: Any) -> None:
    """Let no two processes give their files one name.

    numba counts a kernel's files up from what its index lists. Two processes that compile different argument
    types at the same moment both take the next number; the index may keep the one's entry and the file the
    other's code, which then runs on arrays of types that it was not made for. A numba whose cache looks
    otherwise is left as it is.
    """
    file: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    pattern = getattr(file, "_data_name_pattern", None)
    if isinstance(pattern, str) and pattern.endswith(NUMBERED):
        file._data_name_pattern = FreshNames(pattern.removesuffix(NUMBERED))
