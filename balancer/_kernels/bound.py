"""Least times by bisection over a guess, and the degrees that a guess allows.

Samples are numbered by falling length, so that for each degree the samples that a guess excludes are the
first ones. Degree 0 is the smallest: ``base`` [S] is its time in nanoseconds. ``time`` [D - 1, B] is that of
the other degrees for the B longest samples; the rest run on the smallest degree at every guess asked for.
"""

from __future__ import annotations

import numpy as np

from packing._jit import kernel


@kernel
def rank_work(guess, power, ranks, fixed, later_stages, least_batches, most_batches, equal_power):
    """Nominal nanoseconds of samples that all ranks together can do within ``guess``, from above.

    A rank of speed v that runs k micro-batches has ``v * guess * k / (k + later_stages) - k * fixed`` at
    most, since its largest micro-batch is no smaller than its mean one. Concave in k: the best common k.
    """
    if later_stages == 0:
        return power * guess - fixed * least_batches * ranks
    if not equal_power:
        return power * guess * most_batches / (most_batches + later_stages) - fixed * least_batches * ranks
    batches = most_batches
    if fixed > 0:
        batches = np.sqrt(power / ranks * guess * later_stages / fixed) - later_stages
    batches = max(min(batches, most_batches), least_batches)
    return power * guess * batches / (batches + later_stages) - fixed * batches * ranks


@kernel
def first_within(limit, memory, time):
    """First sample that a degree can hold and finishes within ``limit``; ``time.size`` if none known."""
    hi = time.size
    lo = min(memory, hi)
    while lo < hi:
        middle = (lo + hi) // 2
        if time[middle] <= limit:
            hi = middle
        else:
            lo = middle + 1
    return lo


@kernel
def degree_ranges(guess, spent, fixed, stages, speed, memory, base, time, lo):
    """Write the first sample of each degree's range at this guess, ``lo`` [D]; False if one fits nowhere.

    The range of degree j is ``lo[j]:lo[j - 1]``: the smallest degree that holds a sample in time, where
    ``spent`` nanoseconds of the guess are not for it and it passes ``stages`` stages.
    """
    for j in range(lo.size):
        limit = np.int64((guess - spent) / stages * speed[j]) - fixed[j]
        if j == 0:
            lo[j] = first_within(limit, memory[j], base)
        else:
            lo[j] = min(first_within(limit, memory[j], time[j - 1]), lo[j - 1])
    return lo[lo.size - 1] == 0


@kernel
def clamp_ranges(lo, longest, memory, short):
    """The ranges for a plan: what ends nowhere in time goes widest, short samples stay narrow. In place.

    longest: number of samples whose times on larger degrees are known; short: [D] first one too short.
    """
    lo[lo.size - 1] = 0
    lo[0] = min(lo[0], longest)
    for j in range(1, lo.size):
        lo[j - 1] = max(min(lo[j - 1], short[j]), memory[j - 1])
        if j > 1:
            # Under unequal memory a rank may hold more than any two neighbours.
            lo[j - 1] = min(lo[j - 1], lo[j - 2])
        lo[j] = min(lo[j], lo[j - 1])


@kernel
def least_guess(
    start, spent, fixed, stages, speed, memory, base, base_sums, time, area, slack,
    power, ranks, cheapest, least_batches, most_batches, equal_power,
):  # fmt: skip
    """Smallest whole guess at which every sample fits and the work does; -1 if there is none.

    base_sums: [S + 1] running sums of rank-nanoseconds on the smallest degree; area: [D - 1, B + 1] the
    same for the others, where each sample counts the least over this and all larger degrees. No choice of
    degrees that ends within the guess needs less. About 50 probes of O(D log S).
    """
    degrees = memory.size
    lo = np.empty(degrees, np.int64)
    low = np.int64(start)
    high = max(np.int64(start), np.int64(1))
    doubling = True
    while doubling or low < high:
        guess = high if doubling else low + (high - low) // 2
        fits = degree_ranges(guess, spent, fixed, stages, speed, memory, base, time, lo)
        if fits:
            total = base_sums[base.size] - base_sums[lo[0]] - slack
            for j in range(1, degrees):
                total += area[j - 1, lo[j - 1]] - area[j - 1, lo[j]]
            room = rank_work(
                guess, power, ranks, cheapest, stages - 1, least_batches, most_batches, equal_power
            )
            fits = total <= room
        if fits:
            doubling = False
            high = guess
        elif doubling:
            low = high
            if high >= np.int64(1) << 60:
                return np.int64(-1)
            high *= 2
        else:
            low = guess + 1
    return high


@kernel
def least_areas(degrees, base, time, base_sums, area):
    """Running sums of rank-nanoseconds, from the longest sample on: what `least_guess` reads.

    Writes ``base_sums`` [S + 1], on the smallest degree, and ``area`` [D - 1, B + 1], where each sample
    counts the least over that degree and all larger ones; where the smallest degree is more than one rank,
    that holds for it too.
    """
    samples, longest = base.size, time.shape[1]
    total = 0.0
    base_sums[0] = 0.0
    for i in range(samples):
        total += float(base[i])
        base_sums[i + 1] = total * degrees[0]
    least = np.full(longest, np.inf)
    for j in range(degrees.size - 1, 0, -1):
        total = 0.0
        area[j - 1, 0] = 0.0
        for i in range(longest):
            least[i] = min(least[i], time[j - 1, i] * float(degrees[j]))
            total += least[i]
            area[j - 1, i + 1] = total
    if degrees[0] > 1:
        total = 0.0
        for i in range(samples):
            total += min(least[i], base[i] * float(degrees[0]))
            base_sums[i + 1] = total


@kernel
def charged_areas(degrees, tokens, base, wide, time, rooms, cheapest, a, sums, area):
    """The same, where each sample also pays for its micro-batch: ``cheapest`` nanoseconds on each rank.

    tokens: [S]; wide: [S] nanoseconds on the second degree; rooms: [D] tokens of a micro-batch; ``a`` of the
    second degree's dual feasible function, see `balancer.planning.ladder`. The first degree is one rank.
    """
    samples, longest = base.size, time.shape[1]
    least = np.full(longest, np.inf)
    for j in range(degrees.size - 1, 1, -1):
        degree = degrees[j]
        pieces = 2 * degree
        charge = degree * cheapest / rooms[j]
        total = 0.0
        area[j - 1, 0] = 0.0
        for i in range(longest):
            padded = (tokens[i] + pieces - 1) // pieces * pieces
            least[i] = min(least[i], time[j - 1, i] * float(degree) + padded * charge)
            total += least[i]
            area[j - 1, i + 1] = total
    degree = degrees[1]
    pieces = 2 * degree
    total = 0.0
    area[0, 0] = 0.0
    sums[0] = 0.0
    every = 0.0
    for i in range(samples):
        x = float((tokens[i] + pieces - 1) // pieces * pieces) / rooms[1]
        g = 1.0 - a * (1.0 - x) if x > 0.5 else a * x
        here = wide[i] * float(degree) + degree * cheapest * g
        if i < longest:
            total += min(least[i], here)
            area[0, i + 1] = total
        every += min(base[i] + tokens[i] * (cheapest / rooms[0]), here)
        sums[i + 1] = every
