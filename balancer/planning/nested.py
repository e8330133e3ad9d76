"""Ranks that meet once a step: nested groups, the widest first, then the small samples evenly.

Groups of degrees that divide each other, at multiples of their degree, are nested or apart. Every rank runs
its widest block's micro-batches first and the narrowest last. All members of a block have then done the same
before it, arrive together, and meet its micro-batches in one order: nobody waits, no cycle of waits forms,
and a rank's time is the sum along its path.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from balancer._kernels import nested as kernels
from balancer._kernels import place
from balancer._kernels.fill import fill
from balancer._kernels.order import group_by
from balancer.planning.blocks import Blocks, make_blocks
from balancer.planning.ladder import Ladder, ladder_of
from balancer.planning.layout import SPEED_UNIT, Layout, layout_of, objective_ns, slowness
from balancer.planning.problem import Ints, Problem, padded

Floats = NDArray[np.float64]

GUESSES = (1.0, 1.0005, 1.002, 1.01, 0.9, 0.75, 0.6, 0.5, 0.4, 0.3, 0.25, 1.03, 1.1, 1.25)
"""Shares of the lower bound within which the wide samples shall end, in the order of trial."""

TOLERANCE = 0.002


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Wide:
    """Where the samples of the larger degrees stand."""

    count: int
    """Samples ``0..count - 1`` run on a larger degree."""
    node: Ints
    """[count] block of each."""
    load: Ints
    """[R] nanoseconds of each rank so far."""
    estimate: float
    """Nanoseconds at which the whole step might end."""


def place_wide(problem: Problem, ladder: Ladder, blocks: Blocks) -> Wide:
    """Choose the degrees and place the samples of the larger ones."""
    ranks = problem.ranks
    load = np.zeros(ranks, np.int64)
    node = np.zeros(ladder.time_ns.shape[1], np.int64)
    lo = np.zeros(ladder.degrees.size, np.int64)
    base = int(ladder.degrees[0])
    usable = np.zeros(ranks, np.bool_)
    for start in blocks.starts[: blocks.bounds[1]].tolist():
        usable[start : start + base] = True
    speed = SPEED_UNIT / slowness(problem) * usable
    guesses = ladder.lower_bound_ns * np.array(GUESSES)
    fixed_per_token = ladder.fixed_ns[0] / float(problem.max_tokens.max())
    _, estimate = kernels.choose_degrees(
        guesses, TOLERANCE, ladder.lower_bound_ns, 0.0, ladder.speed, ladder.memory, ladder.base_ns,
        ladder.base_sums, problem.first_too_short(), problem.num_tokens, ladder.time_ns, ladder.degrees,
        ladder.fixed_ns, blocks.starts, blocks.bounds, blocks.room, blocks.pace, SPEED_UNIT,
        max(1, (ranks - 1).bit_length()), speed, float(speed.sum()), fixed_per_token, load, node, lo,
    )  # fmt: skip
    return Wide(count=int(lo[0]), node=node[: int(lo[0])], load=load, estimate=float(estimate))


def divide(problem: Problem) -> Layout:
    """The best nested plan over the chains of degrees that divide each other."""
    chains = divisor_chains(problem.cp_degrees)
    best: tuple[float, Layout] | None = None
    for chain in chains:
        part = problem if chain == problem.cp_degrees else replace(problem, cp_degrees=chain, _cache={})
        if part.first_that_fits(chain[-1]) > 0:
            continue
        ladder = ladder_of(part)
        blocks = make_blocks(part)
        wide = place_wide(part, ladder, blocks)
        layout = finish(part, ladder, blocks, wide)
        if best is None or wide.estimate < best[0]:
            best = (wide.estimate, layout)
    assert best is not None, "problem.check_fits let a sample pass that no chain of degrees can hold"
    return best[1]


def divisor_chains(degrees: tuple[int, ...]) -> list[tuple[int, ...]]:
    """One chain of divisors below each degree that divides no larger one; each chain rises."""
    chains = []
    for top in degrees:
        if any(other > top and other % top == 0 for other in degrees):
            continue
        chain = [top]
        for degree in reversed(degrees):
            if degree < chain[-1] and chain[-1] % degree == 0:
                chain.append(degree)
        chains.append(tuple(reversed(chain)))
    return chains


def finish(problem: Problem, ladder: Ladder, blocks: Blocks, wide: Wide) -> Layout:
    """Spread the rest over the smallest degree's blocks and cut every block's list into micro-batches."""
    units = int(blocks.bounds[1])
    work = ladder.base_ns[wide.count :]
    load = wide.load[blocks.starts[:units]].copy()
    pace = blocks.pace[:units]
    bits = max(1, (units - 1).bit_length())
    node = np.empty(len(problem), np.int64)
    node[: wide.count] = wide.node
    if ladder.fixed_ns[0] == 0:
        if np.all(pace == SPEED_UNIT):
            node[wide.count :] = place.least_loaded(work, load, bits)
        else:
            node[wide.count :] = place.least_finish(work, load, pace, SPEED_UNIT)
        return pack_nodes(problem, blocks, node)
    tokens = padded(problem.num_tokens[wide.count :], int(ladder.degrees[0]))
    unit_of, bin_of = fill_counted(work, tokens, load, pace, blocks.room[:units], int(ladder.fixed_ns[0]))
    node[wide.count :] = unit_of
    return pack_nodes(problem, blocks, node, bin_of)


def pack_nodes(problem: Problem, blocks: Blocks, node: Ints, bin_of: Ints | None = None) -> Layout:
    """Cut the list of each block into micro-batches, widest blocks first.

    bin_of: micro-batch within its block of the last samples, where the fill already chose it.
    """
    widest_first = np.argsort(-blocks.degree, kind="stable")
    rank_of_node = np.empty(blocks.degree.size, np.int64)
    rank_of_node[widest_first] = np.arange(blocks.degree.size)
    key = rank_of_node[node]
    order, offsets = group_by(key, blocks.degree.size)
    degree_of = blocks.degree[node[order]]
    pieces = np.where(degree_of > 1, 2 * degree_of, 1)
    tokens = -(-problem.num_tokens[order] // pieces) * pieces
    bins = np.empty(len(problem), np.int64)
    used = place.first_fit(tokens, offsets, blocks.room[widest_first], bins)
    if bin_of is not None:
        spread = np.empty(len(problem), np.int64)
        spread[order] = bins
        spread[len(problem) - bin_of.size :] = bin_of
        bins = spread[order]
        smallest = blocks.degree.size - int(blocks.bounds[1])
        for k in range(smallest, blocks.degree.size):
            mine = bins[offsets[k] : offsets[k + 1]]
            _, mine[:] = np.unique(mine, return_inverse=True)
            used[k] = mine.max(initial=-1) + 1
    first = np.concatenate([[0], np.cumsum(used)])
    batch_of = np.empty(len(problem), np.int64)
    batch_of[order] = first[key[order]] + bins
    return layout_of(
        batch_of,
        np.repeat(blocks.starts[widest_first], used),
        np.repeat(blocks.degree[widest_first], used),
    )


def share_counts(
    load: Ints, pace: Ints, room: Ints, work: int, tokens: int, fixed: int, spare: float
) -> Ints:
    """[U] micro-batches of each unit, so that all may end together with as few as hold the tokens."""
    speed = SPEED_UNIT / pace
    batches = max(1, int(np.ceil(tokens * (1 + spare) / room.max())))
    mean = work / batches + fixed
    end = (float((load * speed).sum()) + work + fixed * batches) / float(speed.sum())
    share = np.maximum((end - load) * speed / mean, 0.0)
    share *= batches / max(float(share.sum()), 1e-9)
    counts = np.floor(share).astype(np.int64)
    missing = batches - int(counts.sum())
    if missing > 0:
        counts[np.argsort(-(share - counts), kind="stable")[:missing]] += 1
    return counts


def fill_counted(
    work: Ints, tokens: Ints, load: Ints, pace: Ints, room: Ints, fixed: int
) -> tuple[Ints, Ints]:
    total, total_tokens = int(work.sum()), int(tokens.sum())
    best = None
    for spare in (0.002, 0.01):
        counts = share_counts(load, pace, room, total, total_tokens, fixed, spare)
        result = fill_once(work, tokens, load, pace, room, fixed, counts)
        if best is None or result[0] < best[0]:
            best = result
    return best[1], best[2]


DENSE = 0.7


def fill_once(work: Ints, tokens: Ints, load: Ints, pace: Ints, room: Ints, fixed: int, counts: Ints):
    units = load.size
    speed = SPEED_UNIT / pace
    end = (float((load * speed).sum()) + int(work.sum()) + fixed * int(counts.sum())) / float(speed.sum())
    target = ((end - load) * speed).astype(np.int64) - fixed * counts
    budget = counts * room
    first_bin = np.concatenate([[0], np.cumsum(counts)])
    rooms = np.repeat(room, counts)
    sums = np.cumsum(work)
    dense_until = int(np.searchsorted(sums, DENSE * sums[-1])) if work.size else 0
    bits = max(1, (units - 1).bit_length())
    unit_of, bin_of = fill(work, tokens, target, budget, first_bin, rooms, pace, dense_until, bits)
    left = np.flatnonzero(unit_of < 0)
    bin_of -= first_bin[np.maximum(unit_of, 0)]
    if left.size:
        place.spill(left, work, tokens, target, counts, room, fixed, unit_of, bin_of)
    worst = float((end - target / speed).max())
    return worst, unit_of, bin_of
