"""The one way our kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a bare loop: single-threaded, without the GIL, lazily, cached on disk where that is possible.

    ``cache=True`` raises at decoration when neither the source folder nor the home folder is
    writable; then the kernel compiles once a process instead of failing the import.
    """

    def decorate(python_function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(nogil=True, cache=True, **options)(python_function)
        except RuntimeError:
            return numba.njit(nogil=True, **options)(python_function)

    return decorate if function is None else decorate(function)
