"""Division of samples whose cost is a vector: one number for each phase."""

from __future__ import annotations

import numpy as np

from packing._jit import kernel


@kernel
def spread_vectors(work, tokens, room, order, slow, base, scale):
    """[N] bin of each item: the one whose loads grow least in the fourth power, ties to the lowest bin.

    work: [P, N] nanoseconds; tokens: [N]; room: [B] tokens that each bin can hold; order: items, heaviest
    first; slow: [B] factor of each bin; base: [P, B] load that is there already; scale: [P] what each phase
    can at best be brought down to. The fourth power makes the largest loads count most; phases count as much
    as the time that they take. -1 where no bin has room. O(N * B * P).
    """
    phases, bins = base.shape
    load = base.copy()
    free = room.copy()
    bin_of = np.full(work.shape[1], -1, np.int64)
    for k in range(order.size):
        i = order[k]
        best = -1
        best_growth = np.inf
        for b in range(bins):
            if free[b] < tokens[i]:
                continue
            growth = 0.0
            for p in range(phases):
                if scale[p] > 0.0 and work[p, i] > 0.0:
                    before = load[p, b] / scale[p]
                    after = before + work[p, i] * slow[b] / scale[p]
                    before *= before
                    after *= after
                    growth += scale[p] * (after * after - before * before)
            if growth < best_growth:
                best = b
                best_growth = growth
        if best < 0:
            return bin_of
        bin_of[i] = best
        free[best] -= tokens[i]
        for p in range(phases):
            load[p, best] += work[p, i] * slow[best]
    return bin_of


@kernel
def stack_vectors(work, tokens, room, order, phase_of, slow, base):
    """[N] bin of each item: one after the other, to the bin with room that has the least load of its phase.

    work: [P, N]; tokens: [N]; room: [B]; order: items, first to last; phase_of: [N] whose load counts for
    each item; slow: [B]; base: [P, B]. Stops, leaving -1, where no bin has room. O(N * B).
    """
    phases, bins = base.shape
    load = base.copy()
    free = room.copy()
    bin_of = np.full(work.shape[1], -1, np.int64)
    for k in range(order.size):
        i = order[k]
        phase = phase_of[i]
        best = -1
        best_end = np.inf
        for b in range(bins):
            end = load[phase, b] + work[phase, i] * slow[b]
            if end < best_end and free[b] >= tokens[i]:
                best = b
                best_end = end
        if best < 0:
            return bin_of
        bin_of[i] = best
        free[best] -= tokens[i]
        for p in range(phases):
            load[p, best] += work[p, i] * slow[best]
    return bin_of


@kernel
def refine_vectors(work, tokens, room, slow, base, floor, group, bin_of, target, budget):
    """Move and swap items while the sum over groups and phases of the largest load falls. Changes ``bin_of``.

    work: [P, N] nanoseconds; tokens: [N]; room: [B] tokens that each bin can hold; slow: [B]; base: [P, B];
    floor: [P, G] least value of each group's maximum; group: [B]; bin_of: [N]. Of equal sums the one with the
    lower sum of squares is taken, which leads out of ties. Stops at a sum of ``target`` or after ``budget``
    trials. Returns the trials.
    """
    phases, items = work.shape
    bins = group.size
    groups = floor.shape[1]
    load = base.copy()
    free = room.copy()
    for i in range(items):
        free[bin_of[i]] -= tokens[i]
        for p in range(phases):
            load[p, bin_of[i]] += work[p, i] * slow[bin_of[i]]
    # The three largest loads of each group and phase say what remains when two bins change.
    top = np.empty((groups, phases, 3), np.float64)
    who = np.empty((groups, phases, 3), np.int64)
    for g in range(groups):
        _largest_three(load, floor, group, g, top, who)
    total = top[:, :, 0].sum()
    trials = 0
    idle = 0
    turn = 0
    turns = groups * phases
    delta = np.empty(phases, np.float64)
    while idle < turns and trials < budget and total > target:
        g = turn // phases
        phase = turn % phases
        turn = (turn + 1) % turns
        a = who[g, phase, 0]
        if a < 0:
            idle += 1
            continue
        best_change = 0.0
        best_squares = 0.0
        best_i = -1
        best_j = -1
        best_c = -1
        for i in range(items):
            if bin_of[i] != a or work[phase, i] == 0.0:
                continue
            # Item i goes to another bin: alone for k < bins, in exchange for item k - bins after that.
            for k in range(bins + items):
                trials += 1
                j = k - bins
                c = k if j < 0 else bin_of[j]
                if c == a or load[phase, c] >= load[phase, a]:
                    continue
                gain = tokens[i] - (tokens[j] if j >= 0 else 0)
                if free[c] < gain or free[a] < -gain:
                    continue
                for p in range(phases):
                    delta[p] = work[p, i] - (work[p, j] if j >= 0 else 0.0)
                if delta[phase] <= 0.0:
                    continue
                change, squares, noise = _effect(a, c, delta, load, slow, group, floor, top, who)
                better = change < best_change - 0.5
                if not better and change <= best_change + 0.5 and change <= 0.5:
                    better = squares < best_squares - noise
                if better:
                    best_change = change
                    best_squares = squares
                    best_i = i
                    best_j = j
                    best_c = c
            if trials >= budget:
                break
        if best_i < 0:
            idle += 1
            continue
        idle = 0
        turn = (turn + turns - 1) % turns
        for p in range(phases):
            moved = work[p, best_i] - (work[p, best_j] if best_j >= 0 else 0.0)
            load[p, a] -= moved * slow[a]
            load[p, best_c] += moved * slow[best_c]
        gain = tokens[best_i] - (tokens[best_j] if best_j >= 0 else 0)
        free[a] += gain
        free[best_c] -= gain
        total += best_change
        bin_of[best_i] = best_c
        if best_j >= 0:
            bin_of[best_j] = a
        _largest_three(load, floor, group, group[a], top, who)
        if group[best_c] != group[a]:
            _largest_three(load, floor, group, group[best_c], top, who)
    return trials


@kernel
def _largest_three(load, floor, group, g, top, who):
    for p in range(load.shape[0]):
        for k in range(3):
            top[g, p, k] = floor[p, g]
            who[g, p, k] = -1
        for b in range(group.size):
            if group[b] != g:
                continue
            x = load[p, b]
            if x > top[g, p, 0]:
                top[g, p, 2] = top[g, p, 1]
                who[g, p, 2] = who[g, p, 1]
                top[g, p, 1] = top[g, p, 0]
                who[g, p, 1] = who[g, p, 0]
                top[g, p, 0] = x
                who[g, p, 0] = b
            elif x > top[g, p, 1]:
                top[g, p, 2] = top[g, p, 1]
                who[g, p, 2] = who[g, p, 1]
                top[g, p, 1] = x
                who[g, p, 1] = b
            elif x > top[g, p, 2]:
                top[g, p, 2] = x
                who[g, p, 2] = b


@kernel
def _effect(a, c, delta, load, slow, group, floor, top, who):
    """What happens when ``delta`` goes from bin a to bin c.

    Returns the change of the sum of maxima, that of the sum of squares, and how much of the latter may be
    rounding: below that, moves could go round in circles.
    """
    change = 0.0
    squares = 0.0
    noise = 0.0
    for p in range(load.shape[0]):
        less = delta[p] * slow[a]
        more = delta[p] * slow[c]
        new_a = load[p, a] - less
        new_c = load[p, c] + more
        squares += more * (load[p, c] + new_c) - less * (load[p, a] + new_a)
        noise += 1e-9 * (abs(more) * (load[p, c] + new_c) + abs(less) * (load[p, a] + new_a))
        for side in range(2):
            g = group[a] if side == 0 else group[c]
            if side == 1 and group[c] == group[a]:
                break
            rest = floor[p, g]
            for k in range(3):
                if who[g, p, k] != a and who[g, p, k] != c:
                    rest = max(rest, top[g, p, k])
                    break
            largest = rest
            if group[a] == g:
                largest = max(largest, new_a)
            if group[c] == g:
                largest = max(largest, new_c)
            change += largest - top[g, p, 0]
    return change, squares, noise


@kernel
def first_fit_lists(tokens, offsets, capacity):
    """[N] bin of each item, counted from 0 in its list: the first with room, by linear search.

    tokens: [N] each in 1..capacity, list after list; offsets: [G + 1] bounds of the lists.
    """
    bin_of = np.zeros(tokens.size, np.int64)
    room = np.empty(tokens.size, np.int64)
    for g in range(offsets.size - 1):
        used = 0
        for i in range(offsets[g], offsets[g + 1]):
            b = 0
            while b < used and room[b] < tokens[i]:
                b += 1
            if b == used:
                room[used] = capacity
                used += 1
            room[b] -= tokens[i]
            bin_of[i] = b
    return bin_of
