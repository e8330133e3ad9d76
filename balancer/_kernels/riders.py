"""Around `ride`: what wide micro-batches hold, who may ride in them, and who is left."""

from __future__ import annotations

import numpy as np

from packing._jit import kernel


@kernel
def costs(order, offsets, level, time, fixed):
    """[M] nanoseconds of the micro-batches. level: [M] of their degree, at least 1; time: [D - 1, B]."""
    cost = np.empty(level.size, np.int64)
    for m in range(level.size):
        cost[m] = fixed[level[m]]
        for i in range(offsets[m], offsets[m + 1]):
            cost[m] += time[level[m] - 1, order[i]]
    return cost


@kernel
def room_left(order, offsets, degree, room, tokens):
    """[M] tokens that the micro-batches have left, alignment padding counted."""
    free = room.copy()
    for m in range(degree.size):
        pieces = 2 * degree[m]
        for i in range(offsets[m], offsets[m + 1]):
            free[m] -= (tokens[order[i]] + pieces - 1) // pieces * pieces
    return free


@kernel
def candidates(able, tokens, own_room, room, most):
    """Samples of ``able`` that may ride, longest first.

    Two above half of ``own_room`` never share a micro-batch of their own, so that all of these may. Of the
    others every k-th, so that short ones of all lengths stay for the ends: as many as fill ``room`` tokens,
    at most the share ``most`` of them.
    """
    others = np.int64(0)
    large = 0
    for i in range(able.size):
        if 2 * tokens[able[i]] > own_room:
            large += 1
        else:
            others += tokens[able[i]]
    share = min(most, room / max(float(others), 1.0))
    picked = np.empty(able.size, np.int64)
    picked[:large] = able[:large]
    found = large
    for k in range(able.size - large):
        if np.floor((k + 1) * share) > np.floor(k * share):
            picked[found] = able[large + k]
            found += 1
    return picked[:found].copy()


@kernel
def join(order, offsets, riders, batch_of, samples):
    """(order, offsets) of the micro-batches with their riders at the end; samples that stand nowhere.

    batch_of: [riders] micro-batch of each, -1 for none.
    """
    batches = offsets.size - 1
    end = np.zeros(batches + 1, np.int64)
    for m in range(batches):
        end[m + 1] = offsets[m + 1] - offsets[m]
    for c in range(riders.size):
        if batch_of[c] >= 0:
            end[batch_of[c] + 1] += 1
    for m in range(batches):
        end[m + 1] += end[m]
    at = end[:batches].copy()
    joined = np.empty(end[batches], np.int64)
    left = np.ones(samples, np.bool_)
    for m in range(batches):
        for i in range(offsets[m], offsets[m + 1]):
            joined[at[m]] = order[i]
            at[m] += 1
            left[order[i]] = False
    for c in range(riders.size):
        m = batch_of[c]
        if m >= 0:
            joined[at[m]] = riders[c]
            at[m] += 1
            left[riders[c]] = False
    return joined, end, np.flatnonzero(left)


@kernel
def fair_end(load, pace, unit, rest, tokens, base, degree, fixed_per_token):
    """When all ranks would end, were the samples ``rest`` spread evenly in full micro-batches."""
    due, power = 0.0, 0.0
    for r in range(load.size):
        due += load[r] * (unit / pace[r])
        power += unit / pace[r]
    work, length = 0.0, 0.0
    for i in range(rest.size):
        work += base[rest[i]]
        length += tokens[rest[i]]
    return min((due + work * degree + fixed_per_token * length) / power, 2.0**61)
