"""Bare loops over samples of sound."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packing._jit import kernel


@kernel
def filter_phases(
    sound: NDArray[np.float32], taps: NDArray[np.float32], down: int, out: NDArray[np.float32]
) -> None:
    """out[n] = sum of taps[n * down % up] x the samples of ``sound`` around n * down / up.

    taps: [up, width]; ``sound`` carries width // 2 zeros at its front and enough at its end.
    """
    up, width = taps.shape
    for n in range(out.size):
        at = n * down
        first = at // up
        phase = at % up
        total = 0.0
        for k in range(width):
            total += taps[phase, k] * sound[first + k]
        out[n] = total
