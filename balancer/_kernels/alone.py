"""All work on one rank."""

from __future__ import annotations

import numpy as np

from packing._jit import kernel


@kernel
def totals(work, tokens, room):
    """(Nanoseconds as a float, as an integer, fewest bins of ``room`` tokens) of all samples.

    The integer is true where the float is below 2**63. Two samples above half the room never share a bin.
    """
    bound = 0.0
    total = np.int64(0)
    held = np.int64(0)
    large = np.int64(0)
    for s in range(work.size):
        bound += work[s]
        total += work[s]
        held += tokens[s]
        large += tokens[s] > room // 2
    return bound, total, max((held + room - 1) // room, large)


@kernel
def columns(rows, tokens, work, order, offsets, fixed):
    """Columns of the plan's micro-batches, which run one after another.

    rows, tokens, work: [S] of each sample; order: [S], offsets: [M + 1] of the layout. Returns ([M] first
    rank, [M] degree, [M] slot, [M] tokens, [M] seconds, [S] rows in layout order, nanoseconds of all).
    """
    batches = offsets.size - 1
    slot = np.empty(batches, np.int32)
    held = np.empty(batches, np.int64)
    cost_s = np.empty(batches, np.float64)
    in_order = np.empty(order.size, np.int64)
    computed = np.int64(0)
    for m in range(batches):
        cost = np.int64(fixed)
        count = np.int64(0)
        for i in range(offsets[m], offsets[m + 1]):
            sample = order[i]
            in_order[i] = rows[sample]
            count += tokens[sample]
            cost += work[sample]
        slot[m] = m
        held[m] = count
        cost_s[m] = np.float64(cost) * 1e-9
        computed += cost
    return np.zeros(batches, np.int32), np.ones(batches, np.int32), slot, held, cost_s, in_order, computed
