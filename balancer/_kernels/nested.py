"""Nested groups: the widest samples first, on blocks of ranks whose loads their sub-blocks inherit."""

from __future__ import annotations

import numpy as np

from balancer._kernels.bound import clamp_ranges, degree_ranges
from balancer._kernels.heap import heapify, sift_down
from balancer._kernels.pace import at_pace
from packing._jit import kernel


@kernel
def place_wide(lo, tokens, time, degrees, fixed, starts, bounds, room, pace, unit, bits, load, node):
    """Place the samples of every degree but the smallest; returns the highest load.

    Level by level from the widest, longest sample first onto the block with the least load. A block opens
    a micro-batch when its last one has no room. starts: first ranks of all degrees' blocks, those of degree
    j at ``bounds[j]:bounds[j + 1]``; room, pace: tokens and slowness of each block. Writes ``load`` [R] and
    ``node`` [B], the block of each sample.
    """
    load[:] = 0
    widest = bounds[bounds.size - 1] - bounds[1]
    heap = np.empty(max(widest, 1), np.int64)
    left = np.empty(max(widest, 1), np.int64)
    mask = (np.int64(1) << bits) - 1
    for j in range(degrees.size - 1, 0, -1):
        begin, end = lo[j], lo[j - 1]
        if begin >= end:
            continue
        degree = degrees[j]
        blocks = bounds[j + 1] - bounds[j]
        for b in range(blocks):
            heap[b] = (load[starts[bounds[j] + b]] << bits) | b
            left[b] = 0
        heapify(heap, blocks)
        pieces = 2 * degree if degree > 1 else 1
        for i in range(begin, end):
            need = (tokens[i] + pieces - 1) // pieces * pieces
            b = heap[0] & mask
            at = 0
            if need > room[bounds[j] + b]:
                # Unequal memory: the lightest block that can hold the sample.
                at = -1
                for h in range(blocks):
                    if need <= room[bounds[j] + (heap[h] & mask)] and (at < 0 or heap[h] < heap[at]):
                        at = h
                b = heap[at] & mask
            cost = time[j - 1, i]
            if need > left[b]:
                left[b] = room[bounds[j] + b]
                cost += fixed[j]
            left[b] -= need
            slow = pace[bounds[j] + b]
            if slow != unit:
                cost = at_pace(cost, slow, unit)
            node[i] = bounds[j] + b
            heap[at] += cost << bits
            if at == 0:
                sift_down(heap, blocks)
            else:
                heapify(heap, blocks)
        for h in range(blocks):
            first = starts[bounds[j] + (heap[h] & mask)]
            for r in range(first, first + degree):
                load[r] = heap[h] >> bits
    highest = np.int64(0)
    for r in range(load.size):
        highest = max(highest, load[r])
    return highest


@kernel
def choose_degrees(
    guesses, tolerance, bound, spent, speed, memory, base, base_sums, short, tokens, time, degrees, fixed,
    starts, bounds, room, pace, unit, bits, rank_speed, power, fixed_per_token, load, node, lo,
):  # fmt: skip
    """Try the degrees that each guess of the end allows, keep the best; returns (index, estimate).

    The estimate is the higher of the highest block and the mean over the ranks, the small samples spread
    evenly. Stops at the first guess whose estimate is within ``tolerance`` of ``bound``. Small guesses make
    wide groups, which are shorter but use more rank-time. short: [D] first sample too short for a degree.
    """
    best = -1
    best_estimate = np.inf
    total_tokens = np.float64(0)
    for i in range(tokens.size):
        total_tokens += tokens[i]
    attempt = 0
    while attempt <= guesses.size:
        index = attempt if attempt < guesses.size else best
        degree_ranges(guesses[index], spent, fixed, 1, speed, memory, base, time, lo)
        clamp_ranges(lo, node.size, memory, short)
        highest = place_wide(
            lo, tokens, time, degrees, fixed, starts, bounds, room, pace, unit, bits, load, node
        )
        if attempt == guesses.size:
            break
        placed_tokens = np.float64(0)
        for i in range(lo[0]):
            placed_tokens += tokens[i]
        total = (base_sums[base.size] - base_sums[lo[0]]) + fixed_per_token * (total_tokens - placed_tokens)
        for r in range(load.size):
            total += load[r] * rank_speed[r]
        estimate = max(np.float64(highest), total / power)
        if estimate < best_estimate:
            best_estimate = estimate
            best = index
        # Where the mean decides, wider groups only add rank-time; with many samples to place that is enough
        # to stop (18 ms for 25,000 of them). With few, the estimate is too rough to trust its first word.
        if estimate <= bound * (1 + tolerance) or (
            attempt == 0 and lo[0] > 4096 and highest * power <= total
        ):
            break
        attempt += 1
    return best, best_estimate
