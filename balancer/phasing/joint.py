"""One assignment that serves all phases: each sample is encoded where its tokens are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from balancer._kernels.phases import first_fit_lists, refine_vectors, spread_vectors, stack_vectors
from balancer.phasing.assembly import Ints, Placement
from balancer.topology import Topology

REFINE_TRIALS = 3_000_000
"""Trials of one local search: some 50 ms. Counted, not timed, so that equal inputs give equal plans."""

SPREAD_STEPS = 20_000_000
"""(sample, bin, phase) steps up to which the vector heuristic is tried, some 0.1 s."""

STACK_STEPS = 1_000_000_000
"""(sample, bin) steps up to which longest processing time is tried phase after phase, some 0.6 s."""

_LONG_SHARE = 4  # samples longer than this part of a bin find no room once the others are spread
_EXTRA_SLOTS = 2  # that may be added where packs of even phases do not fit the language plan's slots

Loads = NDArray[np.float64]
"""[P, ...] nanoseconds of each phase."""


def joint_placements(
    start: Placement,
    num_tokens: Ints,
    work: Sequence[Ints],
    *,
    topology: Topology,
    max_tokens: int,
    sync: str,
    num_slots: int,
) -> list[Placement]:
    """Placements to choose from, ``start`` first.

    Only samples on single ranks are moved; those that a CP group shares stay, and count as load.

    Args:
        start: a plan of the language phase alone.
        num_tokens: [S] tokens, for the cap.
        work: for each dimension whose largest load counts, [S] nanoseconds of each sample in its group.
        topology: ranks and their speeds.
        max_tokens: tokens of a micro-batch on one rank.
        sync: when ranks meet.
        num_slots: slots of the plan.
    """
    alone = np.flatnonzero(start.cp_degree[start.batch_of] == 1)
    if alone.size == 0 or topology.ranks == 1:
        return [start]
    loads = np.array([w.astype(np.float64) for w in work])
    if sync == "micro_batch":
        return [start, *_refine_slots(start, num_tokens, loads, alone, topology, max_tokens, num_slots)]
    return [start, *_refine_ranks(start, num_tokens, loads, alone, topology, max_tokens)]


def _refine_ranks(
    start: Placement,
    num_tokens: Ints,
    loads: Loads,
    alone: Ints,
    topology: Topology,
    max_tokens: int,
) -> list[Placement]:
    """Ranks meet once: bins are ranks, whose samples are packed into micro-batches afterwards."""
    slow = _slowness(topology)
    base = _shared_load(start, loads, alone, topology.ranks) * slow
    work, tokens = np.ascontiguousarray(loads[:, alone]), num_tokens[alone]
    unlimited = np.full(topology.ranks, np.iinfo(np.int64).max // 4)
    starts = [start.first_rank[start.batch_of[alone]], *_starts(work, tokens, unlimited, slow, base)]
    group = np.zeros(topology.ranks, np.int64)
    floor = np.zeros((len(loads), 1))
    # Each phase's largest load is at least its mean and its largest item; within 0.01 % of that it is enough.
    mean = (work.sum(axis=1) + base.sum(axis=1)) / (1.0 / slow).sum()
    least = np.maximum(mean, work.max(axis=1) * slow.min())
    target = 1.0001 * float(np.maximum(least, base.max(axis=1)).sum())
    placements = []
    for bin_of in starts:
        refine_vectors(work, tokens, unlimited, slow, base, floor, group, bin_of, target, REFINE_TRIALS)
        placements.append(_repacked(start, alone, bin_of, num_tokens, topology.ranks, max_tokens))
    return placements


def _refine_slots(
    start: Placement,
    num_tokens: Ints,
    loads: Loads,
    alone: Ints,
    topology: Topology,
    max_tokens: int,
    num_slots: int,
) -> list[Placement]:
    """Ranks meet in every slot: bins are the (slot, rank) places that no group covers."""
    work, tokens = np.ascontiguousarray(loads[:, alone]), num_tokens[alone]
    placements = []
    for extra in range(_EXTRA_SLOTS + 1):
        slot_of, rank_of, number, floor = _places(start, loads, topology, num_slots + extra)
        slow = _slowness(topology)[rank_of]
        room = np.full(slot_of.size, max_tokens, np.int64)
        base = np.zeros((len(loads), slot_of.size))
        starts = _starts(work, tokens, room, slow, base)
        if topology.speed is None and slot_of.size == number.size:
            starts += [_heaviest_first(bin_of, work, slot_of.size) for bin_of in starts]
        if extra == 0:
            mine = start.batch_of[alone]
            starts.append(number[start.slot[mine], start.first_rank[mine]])
        for bin_of in starts:
            refine_vectors(work, tokens, room, slow, base, floor, slot_of, bin_of, 0.0, REFINE_TRIALS)
            placements.append(_rebuilt(start, alone, bin_of, rank_of, slot_of))
        if len(placements) > 1:
            break
    return placements


def _starts(work: Loads, tokens: Ints, room: Ints, slow: NDArray[np.float64], base: Loads) -> list[Ints]:
    """Assignments [N] of items to bins to begin from; those that left an item without room are dropped."""
    starts = []
    if tokens.size * room.size <= STACK_STEPS:
        starts.append(_stacked(work, tokens, room, slow, base))
    if work.size * room.size <= SPREAD_STEPS:
        starts.append(_spread(work, tokens, room, slow, base))
    return [bin_of for bin_of in starts if np.all(bin_of >= 0)]


def _spread(work: Loads, tokens: Ints, room: Ints, slow: NDArray[np.float64], base: Loads) -> Ints:
    """[N] bin of each item by the vector heuristic."""
    scale = (work.sum(axis=1) + base.sum(axis=1)) / (1.0 / slow).sum()
    weight = (work / np.where(scale > 0, scale, 1.0)[:, None]).max(axis=0)
    order = np.argsort(-weight, kind="stable")
    bin_of: Ints = spread_vectors(work, tokens, room, order, slow, base, scale)
    return bin_of


def _stacked(work: Loads, tokens: Ints, room: Ints, slow: NDArray[np.float64], base: Loads) -> Ints:
    """[N] bin of each item: long ones while there is room, then encoders' by their work, then the others."""
    phase_of = np.zeros(work.shape[1], np.int64)  # rows 1.. are encoders; the last one with work decides
    for p in range(1, work.shape[0]):
        phase_of[work[p] > 0] = p
    phase_of[tokens > int(room.max()) // _LONG_SHARE] = 0
    turn = np.where(tokens > int(room.max()) // _LONG_SHARE, -work.shape[0], -phase_of)
    order = np.lexsort((-work[phase_of, np.arange(tokens.size)], turn))
    bin_of: Ints = stack_vectors(work, tokens, room, order, phase_of, slow, base)
    return bin_of


def _heaviest_first(bin_of: Ints, work: Loads, bins: int) -> Ints:
    """``bin_of`` with bins renumbered by falling load, since neighbours in number share a slot."""
    load = np.bincount(bin_of, work.sum(axis=0), bins)
    heaviest_first = np.argsort(-load, kind="stable")
    number: Ints = np.empty(bins, np.int64)
    number[heaviest_first] = np.arange(bins)
    renumbered: Ints = number[bin_of]
    return renumbered


def _places(
    start: Placement, loads: Loads, topology: Topology, num_slots: int
) -> tuple[Ints, Ints, Ints, NDArray[np.float64]]:
    """([B] slot, [B] rank, [slots, ranks] number of each free place, [P, slots] load of the shared ones)."""
    covered = np.zeros((num_slots, topology.ranks), dtype=bool)
    floor = np.zeros((len(loads), num_slots))
    batch_load = np.array([np.bincount(start.batch_of, w, start.slot.size) for w in loads])
    for m in np.flatnonzero(start.cp_degree > 1):
        group = slice(start.first_rank[m], start.first_rank[m] + start.cp_degree[m])
        covered[start.slot[m], group] = True
        slowest = _slowness(topology)[group].max()
        floor[:, start.slot[m]] = np.maximum(floor[:, start.slot[m]], batch_load[:, m] * slowest)
    slot_of, rank_of = (axis.astype(np.int64) for axis in np.nonzero(~covered))
    number = np.full((num_slots, topology.ranks), -1, np.int64)
    number[slot_of, rank_of] = np.arange(slot_of.size)
    return slot_of, rank_of, number, floor


def _slowness(topology: Topology) -> NDArray[np.float64]:
    return np.ones(topology.ranks) if topology.speed is None else 1.0 / topology.speed


def _shared_load(start: Placement, loads: Loads, alone: Ints, ranks: int) -> NDArray[np.float64]:
    """[P, R] load of the micro-batches that groups share."""
    shared = np.ones(start.batch_of.size, dtype=bool)
    shared[alone] = False
    edges = np.zeros((len(loads), ranks + 1))
    first = start.first_rank[start.batch_of[shared]]
    last = first + start.cp_degree[start.batch_of[shared]]
    for p, load in enumerate(loads):
        np.add.at(edges[p], first, load[shared])
        np.subtract.at(edges[p], last, load[shared])
    base: NDArray[np.float64] = np.ascontiguousarray(np.cumsum(edges, axis=1)[:, :-1])
    return base


def _repacked(
    start: Placement, alone: Ints, rank_of: Ints, num_tokens: Ints, ranks: int, max_tokens: int
) -> Placement:
    """Each rank's own samples in as few micro-batches as first fit, longest first, needs."""
    order = np.lexsort((-num_tokens[alone], rank_of))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rank_of, minlength=ranks))]).astype(np.int64)
    own = np.empty(alone.size, np.int64)
    own[order] = first_fit_lists(num_tokens[alone][order], offsets, max_tokens)
    wide = start.cp_degree > 1
    # Own micro-batches run after the shared ones, as in every plan: root to leaf.
    after = np.zeros(ranks, np.int64)
    for m in np.flatnonzero(wide):
        group = slice(start.first_rank[m], start.first_rank[m] + start.cp_degree[m])
        after[group] = np.maximum(after[group], start.slot[m] + 1)
    return _rebuilt(start, alone, np.arange(alone.size), rank_of, after[rank_of] + own)


def _rebuilt(start: Placement, alone: Ints, bin_of: Ints, rank_of: Ints, slot_of: Ints) -> Placement:
    """``start`` with the samples ``alone`` at (slot, rank) of their bin; shared micro-batches stay."""
    wide = np.flatnonzero(start.cp_degree > 1)
    number = np.full(start.cp_degree.size, -1, np.int64)
    number[wide] = np.arange(wide.size)
    places = np.stack([slot_of[bin_of], rank_of[bin_of]])
    unique, batch = np.unique(places, axis=1, return_inverse=True)
    batch_of = number[start.batch_of]
    batch_of[alone] = wide.size + batch.reshape(-1)
    return Placement(
        first_rank=np.concatenate([start.first_rank[wide], unique[1]]),
        cp_degree=np.concatenate([start.cp_degree[wide], np.ones(unique.shape[1], np.int64)]),
        slot=np.concatenate([start.slot[wide], unique[0]]),
        batch_of=batch_of,
    )
