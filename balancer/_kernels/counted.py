"""Micro-batches that cost something of their own: how many there are, and who gets how many."""

from __future__ import annotations

import numpy as np

from balancer._kernels.fill import fill
from balancer._kernels.place import spill
from packing._jit import kernel


@kernel
def fill_counted(work, tokens, load, pace, room, unit, fixed, needed, dense, patience):
    """([S] micro-batch of each sample, [B] unit of each micro-batch): the best of some numbers of them.

    load: [U] nanoseconds so far; pace: [U] slowness in ``unit`` parts; room: [U] tokens; needed: numbers of
    micro-batches, rising; dense: share of the work that is dealt by density. Numbers are tried until an even
    division would not end earlier. With ``patience`` above 0 two are tried: the first, and the next one that
    costs at least 1 / patience of what the first one's unevenness costs.
    """
    units = load.size
    total = np.int64(0)
    for i in range(work.size):
        total += work[i]
    power, base = 0.0, 0.0
    for u in range(units):
        power += unit / pace[u]
        base += load[u] * (unit / pace[u])
    best_end, skip = np.inf, 0.0
    best_bin, best_unit = np.empty(0, np.int64), np.empty(0, np.int64)
    for n in range(needed.size):
        even = (base + total + float(fixed) * needed[n]) / power
        # No more micro-batches than these can end earlier than they would evenly.
        if even >= best_end:
            break
        if even < skip:
            continue
        counts = share_counts(load, pace, unit, total, needed[n], fixed, even)
        bin_of, unit_of, end = _fill_once(work, tokens, load, pace, room, unit, fixed, counts, even, dense)
        if end < best_end:
            best_bin, best_unit, best_end = bin_of, unit_of, end
        if patience > 0.0:
            if skip > 0.0:
                break
            skip = even + (end - even) / patience
    return best_bin, best_unit


@kernel
def share_counts(load, pace, unit, work, batches, fixed, end):
    """[U] how many of ``batches`` micro-batches each unit gets, so that all may end together at ``end``."""
    units = load.size
    mean = work / batches + fixed
    share = np.empty(units)
    shares = 0.0
    for u in range(units):
        share[u] = max((end - load[u]) * (unit / pace[u]) / mean, 0.0)
        shares += share[u]
    scale = batches / max(shares, 1e-9)
    counts = np.empty(units, np.int64)
    missing = np.int64(batches)
    for u in range(units):
        share[u] *= scale
        counts[u] = np.int64(share[u])
        share[u] -= counts[u]
        missing -= counts[u]
    if missing > 0:
        largest = np.argsort(-share, kind="mergesort")
        for k in range(min(missing, units)):
            counts[largest[k]] += 1
    return counts


@kernel
def _fill_once(work, tokens, load, pace, room, unit, fixed, counts, end, dense):
    """(micro-batch of each sample, unit of each micro-batch, when the last unit ends).

    Fills the ``counts`` [U] micro-batches that each unit was given; what fits nowhere opens more.
    """
    units = load.size
    target = np.empty(units, np.int64)
    first_bin = np.zeros(units + 1, np.int64)
    for u in range(units):
        due = (end - load[u]) * (unit / pace[u])
        target[u] = np.int64(min(max(due, -(2.0**61)), 2.0**61)) - fixed * counts[u]
        first_bin[u + 1] = first_bin[u] + counts[u]
    bins = first_bin[units]
    free = np.empty(bins, np.int64)
    unit_of_bin = np.empty(bins, np.int64)
    for u in range(units):
        free[first_bin[u] : first_bin[u + 1]] = room[u]
        unit_of_bin[first_bin[u] : first_bin[u + 1]] = u
    sums = np.cumsum(work)
    dense_until = np.searchsorted(sums, dense * sums[sums.size - 1])
    bits = 1
    while units - 1 >> bits > 0:
        bits += 1
    unit_of, bin_of = fill(work, tokens, target, counts * room, first_bin, free, pace, dense_until, bits)
    left = np.flatnonzero(unit_of < 0)
    if left.size > 0:
        extra_bin, extra_unit = spill(left, work, tokens, target, pace, room, fixed, bins)
        bin_of[left] = extra_bin
        unit_of_bin = np.concatenate((unit_of_bin, extra_unit))
    number = np.zeros(unit_of_bin.size, np.int64)
    for i in range(bin_of.size):
        number[bin_of[i]] = 1
    used = 0
    for b in range(number.size):
        if number[b] == 0:
            target[unit_of_bin[b]] += fixed
            continue
        number[b] = used
        unit_of_bin[used] = unit_of_bin[b]
        used += 1
    for i in range(bin_of.size):
        bin_of[i] = number[bin_of[i]]
    last = -np.inf
    for u in range(units):
        last = max(last, end - target[u] / (unit / pace[u]))
    return bin_of, unit_of_bin[:used].copy(), last
