"""Threshold accepting over small plans: move, swap, merge and change degree.

Dueck and Scheuer 1990: like annealing, but a change is taken when it is worse by less than a falling
threshold. No exponential, so that every platform takes the same path.
"""

from __future__ import annotations

import numpy as np

from packing._jit import kernel


@kernel
def _random(state, below):
    """Next number of a 64-bit linear congruence, ``0 <= number < below``. Updates ``state`` [1]."""
    state[0] = state[0] * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return np.int64((state[0] >> np.uint64(33)) % np.uint64(below))


@kernel
def _energy(
    batches, count, cost, block, slot, starts, degree, pace, unit, by_slot, later, most, load, top, number
):
    """(nanoseconds of the step, the same plus a small share of how uneven it is); infinite when unlawful."""
    ranks = pace.size
    load[:] = 0
    top[:] = 0
    number[:] = 0
    rank_time = np.float64(0)
    squares = np.float64(0)
    for m in range(batches):
        if count[m] == 0:
            continue
        first = starts[block[m]]
        last = first + degree[block[m]]
        slow = pace[first]
        for r in range(first + 1, last):
            slow = max(slow, pace[r])
        time = cost[m] * slow / unit
        rank_time += time * (last - first)
        squares += time * time * (last - first)
        if by_slot:
            k = slot[m]
            if time > load[k]:
                load[k] = time
        for r in range(first, last):
            number[r] += 1
            if not by_slot:
                load[r] += time
                top[r] = max(top[r], time)
    worst = np.float64(0)
    total = np.float64(0)
    if by_slot:
        for k in range(load.size):
            total += load[k]
            worst = max(worst, load[k])
        total += later * worst
        if rank_time > 0:
            return total, total + 0.01 * rank_time / ranks + 0.01 * squares / rank_time
        return total, total
    uneven = np.float64(0)
    mean = np.float64(0)
    for r in range(ranks):
        end = load[r] + later * top[r]
        total = max(total, end)
        uneven += end * end
        mean += end
        if number[r] > most:
            return np.inf, np.inf
    return total, total + (0.05 * uneven / mean if mean > 0 else 0.0)


@kernel
def _clashes(m, block, slot, count, batches, starts, degree, at_block, at_slot):
    """Whether a group of ``at_block`` meets another micro-batch in ``at_slot``."""
    first = starts[at_block]
    last = first + degree[at_block]
    for other in range(batches):
        if other != m and count[other] > 0 and slot[other] == at_slot:
            start = starts[block[other]]
            if start < last and first < start + degree[block[other]]:
                return True
    return False


@kernel
def improve(
    time, need, fixed, starts, degree, level, room, pace, unit, by_slot, later, most, slots, effort, heat,
    seed, enough, batch_of, block, slot,
):  # fmt: skip
    """Improve a plan in place within ``effort`` trials; returns (batch_of, block, slot, nanoseconds).

    time, need: [D, S] nanoseconds and padded tokens of each sample on each degree, need < 0 where it may not
    run; starts, degree, level, room: [N] of the blocks; batch_of: [S]; block, slot: [M] of the micro-batches.
    ``slots`` bounds the slot numbers, ``most`` the micro-batches of a rank. Stops early at ``enough``.
    """
    samples = batch_of.size
    batches = samples + 1
    ranks = pace.size
    count = np.zeros(batches, np.int64)
    tokens = np.zeros(batches, np.int64)
    cost = np.zeros(batches, np.float64)
    the_block = np.zeros(batches, np.int64)
    the_slot = np.zeros(batches, np.int64)
    for m in range(block.size):
        the_block[m] = block[m]
        the_slot[m] = slot[m]
    for i in range(samples):
        m = batch_of[i]
        j = level[the_block[m]]
        if count[m] == 0:
            cost[m] = fixed[j]
        count[m] += 1
        tokens[m] += need[j, i]
        cost[m] += time[j, i]
    load = np.zeros(max(slots, ranks), np.float64)
    top = np.zeros(ranks, np.float64)
    number = np.zeros(ranks, np.int64)
    state = np.empty(1, np.uint64)
    state[0] = np.uint64(seed) + np.uint64(88172645463325252)
    value, energy = _energy(
        batches, count, cost, the_block, the_slot, starts, degree, pace, unit, by_slot, later, most, load,
        top, number,
    )  # fmt: skip
    best_value = value
    best_of = batch_of.copy()
    best_block = the_block.copy()
    best_slot = the_slot.copy()
    # What a trial overwrites: up to two micro-batches and the samples that move.
    old_batch = np.empty(2, np.int64)
    old = np.empty((2, 5), np.float64)
    moved = np.empty(samples, np.int64)
    was = np.empty(samples, np.int64)
    for trial in range(effort):
        threshold = value * heat * (effort - trial) / effort
        kind = _random(state, 8)
        moves = 0
        touched = 0
        lawful = True
        i = _random(state, samples)
        m = batch_of[i]
        target = m
        if kind <= 1:
            # One sample into the micro-batch of another.
            target = batch_of[_random(state, samples)]
            if target == m:
                continue
            moved[0] = i
            moves = 1
        elif kind == 2:
            # Two samples change places.
            k = _random(state, samples)
            target = batch_of[k]
            if target == m:
                continue
            moved[0] = i
            moved[1] = k
            moves = 2
        elif kind == 3:
            # One sample into a micro-batch of its own, anywhere.
            for other in range(batches):
                if count[other] == 0:
                    target = other
                    break
            moved[0] = i
            moves = 1
        elif kind == 4:
            # All samples of a micro-batch into another.
            target = batch_of[_random(state, samples)]
            if target == m:
                continue
            for k in range(samples):
                if batch_of[k] == m:
                    moved[moves] = k
                    moves += 1
        # Remember both micro-batches.
        old_batch[0] = m
        old_batch[1] = target
        touched = 2 if target != m else 1
        for t in range(touched):
            b = old_batch[t]
            old[t, 0] = count[b]
            old[t, 1] = tokens[b]
            old[t, 2] = cost[b]
            old[t, 3] = the_block[b]
            old[t, 4] = the_slot[b]
        for k in range(moves):
            was[k] = batch_of[moved[k]]
            batch_of[moved[k]] = target if was[k] == m else m
        if kind == 3:
            the_block[target] = _random(state, starts.size)
            the_slot[target] = _random(state, slots) if by_slot else 0
        elif kind >= 5:
            # A whole micro-batch to another block or slot; kind 7: it changes places with another one.
            if kind == 7:
                target = batch_of[_random(state, samples)]
                if target == m:
                    continue
                old_batch[1] = target
                touched = 2
                old[1, 0] = count[target]
                old[1, 1] = tokens[target]
                old[1, 2] = cost[target]
                old[1, 3] = the_block[target]
                old[1, 4] = the_slot[target]
                the_block[m], the_block[target] = the_block[target], the_block[m]
                the_slot[m], the_slot[target] = the_slot[target], the_slot[m]
            else:
                the_block[m] = _random(state, starts.size)
                if by_slot and kind == 6:
                    the_slot[m] = _random(state, slots)
        # Count both afresh: small plans have few samples.
        for t in range(touched):
            b = old_batch[t]
            j = level[the_block[b]]
            count[b] = 0
            tokens[b] = 0
            cost[b] = fixed[j]
            for k in range(samples):
                if batch_of[k] == b:
                    count[b] += 1
                    tokens[b] += need[j, k]
                    cost[b] += time[j, k]
                    if need[j, k] < 0:
                        lawful = False
            if count[b] > 0 and tokens[b] > room[the_block[b]]:
                lawful = False
            if lawful and by_slot and count[b] > 0:
                lawful = not _clashes(
                    b, the_block, the_slot, count, batches, starts, degree, the_block[b], the_slot[b]
                )
        new_value = np.inf
        new_energy = np.inf
        if lawful:
            new_value, new_energy = _energy(
                batches, count, cost, the_block, the_slot, starts, degree, pace, unit, by_slot, later, most,
                load, top, number,
            )  # fmt: skip
        if new_energy <= energy + threshold:
            energy = new_energy
            value = new_value
            if value < best_value:
                best_value = value
                best_of[:] = batch_of
                best_block[:] = the_block
                best_slot[:] = the_slot
                if best_value <= enough:
                    break
        else:
            for t in range(touched):
                b = old_batch[t]
                count[b] = np.int64(old[t, 0])
                tokens[b] = np.int64(old[t, 1])
                cost[b] = old[t, 2]
                the_block[b] = np.int64(old[t, 3])
                the_slot[b] = np.int64(old[t, 4])
            for k in range(moves):
                batch_of[moved[k]] = was[k]
    return best_of, best_block, best_slot, best_value
