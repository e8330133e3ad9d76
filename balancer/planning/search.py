"""Small plans, improved sample by sample."""

from __future__ import annotations

import numpy as np

from balancer._kernels import search as kernels
from balancer.planning.blocks import Blocks, make_blocks
from balancer.planning.layout import SPEED_UNIT, Layout, layout_of, objective_ns, slots_of, slowness
from balancer.planning.longest import TooLong
from balancer.planning.problem import Ints, Problem, padded

MOST_SAMPLES = 96
"""Above it the constructions are close to the bound, and a trial costs time in proportion to the samples."""

TRIALS = 4_000
"""Trials of a search: about 1 ms for 16 samples. Ten times as many shorten a step of one degree by 0.03 %."""

MANY_TRIALS, FEW_SAMPLES = 40_000, 16
"""Trials where few samples have several degrees to choose from: 8 ms, and on 200 instances of 5 to 9 samples
nothing was more than 2.2 % above the optimum, where 4,000 trials leave 9 % in one of them."""

HEATS = (0.5, 0.5, 0.2, 0.2, 0.05)
"""First thresholds of the runs, in parts of the step time."""

ENOUGH = 0.001
"""Gap at which the search stops: on 12 samples and 2 ranks it takes 1 ms instead of 9."""


def improve(problem: Problem, layout: Layout, lower_bound_ns: int) -> Layout:
    """``layout`` after trials of small changes, or itself where none helped.

    Under ``sync="step"`` only nested groups are searched, whose ranks never wait for each other.
    """
    effort = problem.effort
    if effort is None:
        effort = MANY_TRIALS if len(problem) <= FEW_SAMPLES and len(problem.cp_degrees) > 1 else TRIALS
    if effort == 0 or len(problem) > MOST_SAMPLES:
        return layout
    blocks = make_blocks(problem)
    by_slot = problem.sync == "micro_batch"
    if not by_slot:
        degrees = np.unique(layout.cp_degree)
        if np.any(degrees[1:] % degrees[:-1]):
            return layout
        blocks = _only(blocks, _chain_with(problem.cp_degrees, degrees))
    levels = {degree: j for j, degree in enumerate(problem.cp_degrees)}
    level = np.array([levels[d] for d in blocks.degree.tolist()], np.int64)
    time = np.stack([problem.work_ns(d) for d in problem.cp_degrees])
    need = np.stack([padded(problem.num_tokens, d) for d in problem.cp_degrees])
    for j, short in enumerate(problem.first_too_short().tolist()):
        need[j, short:] = -1
    fixed = np.array([problem.fixed_ns(d) for d in problem.cp_degrees], np.int64)
    slot, num_slots = slots_of(problem, layout)
    at = {
        (s, d): n for n, (s, d) in enumerate(zip(blocks.starts.tolist(), blocks.degree.tolist(), strict=True))
    }
    block = np.array(
        [at[s, d] for s, d in zip(layout.first_rank.tolist(), layout.cp_degree.tolist(), strict=True)],
        np.int64,
    )
    batch_of = np.empty(len(problem), np.int64)
    batch_of[layout.order] = np.repeat(np.arange(block.size), np.diff(layout.offsets))
    most = problem.micro_batches if problem.micro_batches is not None else len(problem) + 1
    slots = problem.micro_batches if problem.micro_batches is not None else num_slots + 1
    best, best_ns = layout, objective_ns(problem, layout)
    pace = slowness(problem)
    enough = lower_bound_ns * (1 + ENOUGH)
    for run, heat in enumerate(HEATS):
        if best_ns <= enough:
            break
        batch_of, block, slot, _ = kernels.improve(
            time, need, fixed, blocks.starts, blocks.degree, level, blocks.room, pace, SPEED_UNIT, by_slot,
            problem.topology.pipeline_stages - 1, most, slots, effort // len(HEATS), heat,
            problem.seed + run, enough, batch_of, block, slot,
        )  # fmt: skip
        found = _layout(blocks, batch_of, block, slot if by_slot else None)
        try:
            time_ns = objective_ns(problem, found)
        except TooLong:
            break  # trials add times without a check of 64 bits
        if time_ns < best_ns:
            best, best_ns = found, time_ns
    return best


def _layout(blocks: Blocks, batch_of: Ints, block: Ints, slot: Ints | None) -> Layout:
    used = np.unique(batch_of)
    # Widest first: the order in which nested groups never wait.
    used = used[np.lexsort((used, -blocks.degree[block[used]]))]
    number = np.empty(block.size, np.int64)
    number[used] = np.arange(used.size)
    if slot is not None:
        _, slot = np.unique(slot[used], return_inverse=True)
        slot = slot.astype(np.int64)
    return layout_of(number[batch_of], blocks.starts[block[used]], blocks.degree[block[used]], slot=slot)


def _chain_with(degrees: tuple[int, ...], used: Ints) -> tuple[int, ...]:
    """``used`` and the other allowed degrees that divide, or are divided by, all that are taken so far."""
    chain = set(used.tolist())
    for degree in sorted(degrees, reverse=True):
        if all(degree % other == 0 or other % degree == 0 for other in chain):
            chain.add(degree)
    return tuple(sorted(chain))


def _only(blocks: Blocks, degrees: tuple[int, ...]) -> Blocks:
    keep = np.isin(blocks.degree, degrees)
    return Blocks(
        starts=blocks.starts[keep],
        degree=blocks.degree[keep],
        bounds=np.concatenate(
            [[0], np.cumsum([np.count_nonzero(blocks.degree == d) for d in degrees])]
        ).astype(np.int64),
        room=blocks.room[keep],
        pace=blocks.pace[keep],
    )
