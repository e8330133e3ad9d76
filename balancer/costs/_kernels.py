"""Costs of many samples at many degrees in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from packing._jit import kernel


@kernel
def polynomial_ns(
    num_tokens: Any, pairs: Any, degrees: Any, wire_s: Any, linear: float, quadratic: float, overlap: float
) -> Any:
    """[D, S] nanoseconds, -1 where they reach 2**61. The same operations in the same order as `CostModel`.

    num_tokens, pairs: [S]; degrees, wire_s: [D], the latter in seconds a token before overlap.
    """
    cost_ns = np.empty((degrees.size, num_tokens.size), np.int64)
    for d in range(degrees.size):
        degree, wire = float(degrees[d]), wire_s[d]
        for s in range(num_tokens.size):
            attention_s = quadratic * pairs[s]
            seconds = (linear * num_tokens[s] + attention_s) / degree
            if wire > 0.0:
                exposed_s = num_tokens[s] * wire - overlap * (attention_s / degree)
                if exposed_s > 0.0:
                    seconds += exposed_s
            nanoseconds = np.floor(seconds * 1e9 + 0.5)
            cost_ns[d, s] = np.int64(nanoseconds) if nanoseconds < 2.0**61 else -1
    return cost_ns
