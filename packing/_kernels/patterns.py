"""Linear programming over packing patterns: which mixes of lengths should packs have, in fractions.

No matrix library: its results differ in the last bits between processors, and with them the packs.
"""

import numpy as np

from packing._jit import kernel

SCALE = 1 << 30  # prices are whole multiples of 1 / SCALE of a pack, so that the bound is exact
BLOCK = 32
TINY = 1e-9


@kernel
def best_pattern(lengths, most, prices, capacity):
    """The most valuable pattern: its value and how often it holds each length. Exact.

    most: samples there are of each length. A bounded knapsack, each length as 1, 2, 4, ... samples at a time.
    """
    num_rows = 0
    for v in range(lengths.shape[0]):
        left = min(most[v], capacity // lengths[v]) if prices[v] > 0 else 0
        while left > 0:
            num_rows += 1
            left >>= 1
    row_value = np.empty(num_rows, np.int64)
    row_times = np.empty(num_rows, np.int64)
    taken = np.zeros((num_rows, capacity + 1), np.bool_)
    value = np.zeros(capacity + 1, np.int64)
    r = 0
    for v in range(lengths.shape[0]):
        left = min(most[v], capacity // lengths[v]) if prices[v] > 0 else 0
        times = 1
        while left > 0:
            times = min(times, left)
            left -= times
            weight = times * lengths[v]
            gain = times * prices[v]
            row_value[r] = v
            row_times[r] = times
            for room in range(capacity, weight - 1, -1):
                better = value[room - weight] + gain
                if better > value[room]:
                    value[room] = better
                    taken[r, room] = True
            r += 1
            times *= 2
    pattern = np.zeros(lengths.shape[0], np.int64)
    room = capacity
    for i in range(r - 1, -1, -1):
        if taken[i, room]:
            pattern[row_value[i]] += row_times[i]
            room -= row_times[i] * lengths[row_value[i]]
    return value[capacity], pattern, r * (capacity + 1)


@kernel
def fractional_packs(lengths, demand, capacity, pool, pool_size, work):
    """Fewest packs, in fractions, by column generation (Gilmore and Gomory, 1961).

    lengths, demand: [V], demand above 0. pool: [., V] patterns known so far, the first ``pool_size`` of them.
    Returns basis [V] (pattern number, or -1 for one sample alone or for too many of a length), x [V] how
    often each, prices [V] in 1 / SCALE packs, value of the best pattern at those prices (SCALE at the
    optimum), pool, pool_size and the work left; work counts innermost loop turns and stops the search at 0.
    """
    size = lengths.shape[0]
    basis = np.full(size, -1, np.int64)
    inverse = np.eye(size)
    x = demand.astype(np.float64)
    price = np.ones(size)
    prices = np.zeros(size, np.int64)
    column = np.empty(size)
    scanned = 0
    best_value = np.int64(0)
    while True:
        # One column enters: too many of a length, a pattern of the pool, or the best pattern of all.
        entering = np.int64(-2)
        gain = TINY
        for v in range(size):
            if -price[v] > gain:
                gain = -price[v]
                entering = -1
                surplus = v
        looked = 0
        while entering == -2 and looked < pool_size:
            for _ in range(min(BLOCK, pool_size - looked)):
                worth = -1.0
                for v in range(size):
                    worth += price[v] * pool[scanned, v]
                if worth > gain:
                    gain = worth
                    entering = scanned
                scanned = (scanned + 1) % pool_size
                looked += 1
        work -= looked * size
        if entering == -2:
            for v in range(size):
                prices[v] = np.int64(max(price[v], 0.0) * SCALE)
            best_value, pattern, cells = best_pattern(lengths, demand, prices, capacity)
            work -= cells
            if best_value <= SCALE + 64 or work <= 0:
                break
            gain = -1.0
            for v in range(size):
                gain += price[v] * pattern[v]
            if gain <= TINY:
                break
            if pool_size == pool.shape[0]:
                more = np.zeros((2 * pool_size, size), pool.dtype)
                more[:pool_size] = pool
                pool = more
            pool[pool_size] = pattern
            entering = pool_size
            pool_size += 1
        # Its column in the present basis, and the row that leaves.
        for i in range(size):
            column[i] = 0.0
        if entering == -1:
            for i in range(size):
                column[i] = -inverse[i, surplus]
        else:
            for v in range(size):
                times = pool[entering, v]
                if times != 0:
                    for i in range(size):
                        column[i] += inverse[i, v] * times
        leaving = -1
        ratio = 0.0
        for i in range(size):
            if column[i] > 1e-7:
                bound = max(x[i], 0.0) / column[i]
                if leaving < 0 or bound < ratio - 1e-12 or (bound <= ratio and column[i] > column[leaving]):
                    leaving = i
                    ratio = bound
        if leaving < 0:
            break
        for v in range(size):
            inverse[leaving, v] /= column[leaving]
        for i in range(size):
            if i != leaving and column[i] != 0.0:
                times = column[i]
                for v in range(size):
                    inverse[i, v] -= times * inverse[leaving, v]
                x[i] -= times * ratio
        x[leaving] = ratio
        basis[leaving] = entering
        for v in range(size):
            price[v] -= gain * inverse[leaving, v]
        work -= size * size
        if work <= 0:
            break
    return basis, x, prices, best_value, pool, pool_size, work
