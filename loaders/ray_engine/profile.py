"""What reading costs, by source, learned from what was read. Pure: neither Ray nor torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

FADING = 0.995
"""Weight that earlier readings keep with each new one."""
PRIOR_TOKENS = 1000.0
"""Weight of what is assumed before anything was read."""
LIGHT_S = 2e-8
"""Seconds a token of plain tokens, assumed at first."""
HEAVY_S = 2e-6
"""The same where media are decoded."""
TOKEN_BYTES = 4.0


class Profile:
    """Seconds and bytes a token of each source.

    Args:
        heavy: [n] whether a source decodes media.
    """

    def __init__(self, heavy: NDArray[np.bool_]) -> None:
        n = heavy.size
        self._tokens = np.full(n, PRIOR_TOKENS)
        self._seconds = np.where(heavy, HEAVY_S, LIGHT_S) * PRIOR_TOKENS
        self._bytes = np.full(n, TOKEN_BYTES * PRIOR_TOKENS)

    def add(self, tokens: Mapping[int, int], seconds: Mapping[int, float], sizes: Mapping[int, int]) -> None:
        """Learn from one micro-batch's readings, by source."""
        for number, count in tokens.items():
            self._tokens[number] = self._tokens[number] * FADING + count
            self._seconds[number] = self._seconds[number] * FADING + seconds[number]
            self._bytes[number] = self._bytes[number] * FADING + sizes[number]

    def load_s(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """[n] Seconds that reading ``tokens`` [n] takes."""
        loads: NDArray[np.float64] = tokens * self._seconds / self._tokens
        return loads

    def size_bytes(self, tokens: NDArray[np.float64]) -> float:
        """Bytes that ``tokens`` [n] are, together."""
        return float((tokens * self._bytes / self._tokens).sum())
