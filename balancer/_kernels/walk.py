"""One step on its cluster, operation by operation."""

from __future__ import annotations

import numpy as np

from packing._jit import kernel


@kernel
def one_forward_one_backward(
    first_rank, cp_degree, slot_start, forward, backward, idle_forward, idle_backward, share, pace, together
):
    """(seconds until the last GPU ends, busy [R, P], most held [R]) of a step.

    Every stage runs its slots in the order of 1F1B: stage s starts with P - 1 - s forwards, then alternates.
    All ranks keep that order by slot, so that groups never wait for each other in a circle; a rank without a
    micro-batch in a slot skips it. With P = 1 each backward follows its forward.

    Micro-batches [M] come by slot: those of slot k are slot_start[k]:slot_start[k + 1]. forward, backward:
    [M] seconds on one nominal stage; share: [M] what each rank holds of it between the two; pace: [R, P]
    seconds that a nominal second takes. With ``together`` all ranks of a stage meet around every operation,
    and those without a micro-batch run idle_forward or idle_backward seconds.
    """
    ranks, stages = pace.shape
    slots = slot_start.size - 1
    free = np.zeros((ranks, stages))
    busy = np.zeros((ranks, stages))
    held = np.zeros(ranks)
    most = np.zeros(ranks)
    forward_end = np.zeros((stages, first_rank.size))
    backward_end = np.zeros((stages, first_rank.size))
    # with `together`: when each slot's operation ended
    all_forward = np.zeros((stages, slots))
    all_backward = np.zeros((stages, slots))
    taken = np.zeros(ranks, np.bool_)
    position = np.zeros(stages, np.int64)
    forwards = np.zeros(stages, np.int64)
    backwards = np.zeros(stages, np.int64)
    left = 2 * slots * stages
    while left > 0:
        before = left
        for s in range(stages):
            warm = min(stages - 1 - s, slots)
            while position[s] < 2 * slots:
                i = position[s]
                is_forward = i < warm or (i < 2 * slots - warm and (i - warm) % 2 == 0)
                k = forwards[s] if is_forward else backwards[s]
                if is_forward and s > 0 and forwards[s - 1] <= k:
                    break
                if not is_forward and s < stages - 1 and backwards[s + 1] <= k:
                    break
                longest = 0.0
                begin_all = 0.0
                if together:
                    for r in range(ranks):
                        begin_all = max(begin_all, free[r, s])
                        taken[r] = False
                    if is_forward and s > 0:
                        begin_all = max(begin_all, all_forward[s - 1, k])
                    if not is_forward and s < stages - 1:
                        begin_all = max(begin_all, all_backward[s + 1, k])
                for m in range(slot_start[k], slot_start[k + 1]):
                    lo = first_rank[m]
                    hi = lo + cp_degree[m]
                    nominal = forward[m] if is_forward else backward[m]
                    begin = 0.0
                    slowest = 0.0
                    for r in range(lo, hi):
                        begin = max(begin, free[r, s])
                        slowest = max(slowest, pace[r, s])
                        busy[r, s] += nominal * pace[r, s]
                        taken[r] = True
                        if s == 0:
                            held[r] += share[m] if is_forward else -share[m]
                            most[r] = max(most[r], held[r])
                    if is_forward and s > 0:
                        begin = max(begin, forward_end[s - 1, m])
                    if not is_forward and s < stages - 1:
                        begin = max(begin, backward_end[s + 1, m])
                    longest = max(longest, nominal * slowest)
                    end = begin + nominal * slowest
                    if is_forward:
                        forward_end[s, m] = end
                    else:
                        backward_end[s, m] = end
                    for r in range(lo, hi):
                        free[r, s] = end
                if together:
                    dummy = idle_forward if is_forward else idle_backward
                    for r in range(ranks):
                        if not taken[r]:
                            longest = max(longest, dummy * pace[r, s])
                    free[:, s] = begin_all + longest
                    if is_forward:
                        all_forward[s, k] = begin_all + longest
                    else:
                        all_backward[s, k] = begin_all + longest
                if is_forward:
                    forwards[s] += 1
                else:
                    backwards[s] += 1
                position[s] += 1
                left -= 1
        assert left < before
    end = 0.0
    for r in range(ranks):
        for s in range(stages):
            end = max(end, free[r, s])
    return end, busy, most
