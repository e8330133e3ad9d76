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
PACE_FADING = 0.7
"""Weight that earlier looks at the pace keep with each new one: when all wait for files that are opened, one
look alone would say that training takes no time."""


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


class Pace:
    """Seconds that training takes for a step when it does not wait for data, over the last looks."""

    def __init__(self) -> None:
        self._seconds = self._waited = self._steps = 0.0

    def add(self, *, seconds: float, waited: float, steps: int) -> None:
        """Learn from ``seconds`` with so many steps, of which ``waited`` were waited for data.

        The two may belong to slightly different times: waits are told later.
        """
        self._seconds = self._seconds * PACE_FADING + seconds
        self._waited = self._waited * PACE_FADING + waited
        self._steps = self._steps * PACE_FADING + steps

    @property
    def compute_s(self) -> float:
        """Nearly 0 where all time is waited."""
        return max(self._seconds - self._waited, 1e-6) / max(self._steps, 1e-6)
