"""Short samples in the free room of wide micro-batches, where that is cheaper than one more micro-batch."""

from __future__ import annotations

import numpy as np

from balancer._kernels.pace import at_pace
from packing._jit import kernel


@kernel
def ride(tokens, time, level, degree, free, end, first, last, pace, unit, load):
    """[C] micro-batch that each candidate rides in, -1 for none. Updates ``free`` [M] and ``load`` [R].

    tokens: [C] falling; time: [L, C] nanoseconds at each level's degree; level: [M] of each wide
    micro-batch, -1 where riding does not pay; free: [M] tokens; its loads are ``load[first[m]:last[m]]``.
    Micro-batch after micro-batch takes the longest candidates that still fit, until it is full or one of its
    loads would pass ``end`` [M].
    """
    count = tokens.size
    batch_of = np.full(count, -1, np.int64)
    # next_free[i]: the first candidate from i on that rides nowhere yet, with path halving.
    next_free = np.arange(count + 1)
    # first_of[k]: the first candidate of fewer than ``k << shift`` tokens. It leaves few steps to bisection,
    # which took half of the time of 25,000 micro-batches.
    shift = 0
    while count > 0 and tokens[0] >> shift >= 1024:
        shift += 1
    first_of = np.empty(1026, np.int64)
    at = count
    for k in range(1026):
        while at > 0 and tokens[at - 1] < k << shift:
            at -= 1
        first_of[k] = at
    for m in range(level.size):
        if level[m] < 0:
            continue
        pieces = 2 * degree[m]
        slow = pace[first[m]]
        latest = load[first[m]]
        for r in range(first[m] + 1, last[m]):
            slow = max(slow, pace[r])
            latest = max(latest, load[r])
        added = np.int64(0)
        i = 0
        while True:
            room = free[m] // pieces * pieces
            # The first candidate that fits: they fall, so that all later ones fit as well.
            bucket = min(max(room, 0) >> shift, 1024)
            lo = max(i, first_of[bucket + 1])
            hi = max(i, first_of[bucket])
            while lo < hi:
                middle = (lo + hi) // 2
                if tokens[middle] <= room:
                    hi = middle
                else:
                    lo = middle + 1
            i = lo
            while next_free[i] != i:
                next_free[i] = next_free[next_free[i]]
                i = next_free[i]
            if i >= count:
                break
            cost = at_pace(time[level[m], i], slow, unit)
            if latest + added + cost > end[m]:
                # Shorter candidates may still end in time: halve the length.
                half = tokens[i] // 2
                lo = max(i, first_of[min((half >> shift) + 1, 1025)])
                hi = max(i, first_of[half >> shift])
                while lo < hi:
                    middle = (lo + hi) // 2
                    if tokens[middle] <= half:
                        hi = middle
                    else:
                        lo = middle + 1
                if lo >= count:
                    break
                i = lo
                continue
            batch_of[i] = m
            next_free[i] = i + 1
            added += cost
            free[m] -= (tokens[i] + pieces - 1) // pieces * pieces
        for r in range(first[m], last[m]):
            load[r] += added
    return batch_of
