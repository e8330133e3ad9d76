"""Joint placements whose micro-batches hold no more patches or frames than fit: those that do are split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from balancer.phasing.assembly import Ints, Placement, with_alignment
from balancer.planning.samples import dealt


def within_limits(placement: Placement, limits: Sequence[tuple[Ints, int]], *, sync: str) -> Placement:
    """The placement with micro-batches split that pass a limit, on the ranks that had them.

    Args:
        placement: who works on what.
        limits: for each limited phase [S] units and what one rank can hold of them in one micro-batch.
        sync: under ``"micro_batch"`` all parts of a slot come before the next slot; under ``"step"`` each
            group runs its own as early as its ranks can.

    A sample that passes a limit by itself stays alone in its micro-batch, for the caller to refuse.

    Cost: O(S) where nothing is split; first fit, longest first, inside the micro-batches that are.
    """
    if not limits:
        return placement
    degree_of = placement.cp_degree[placement.batch_of]
    units = np.stack([with_alignment(own, degree_of) for own, _ in limits])  # [limits, S]
    room = np.array([[most] for _, most in limits], np.int64) * placement.cp_degree  # [limits, M]
    held = np.stack([np.bincount(placement.batch_of, own, room.shape[1]) for own in units])
    if not np.any(held > room):
        return placement
    part_of: Ints = np.zeros(placement.batch_of.size, np.int64)
    for m in np.flatnonzero((held > room).any(axis=0)):
        samples = np.flatnonzero(placement.batch_of == m)
        part_of[samples] = _first_fit(units[:, samples], room[:, m])
    return _parted(placement, part_of, sync)


def within_samples(placement: Placement, num_tokens: Ints, max_samples: int, *, sync: str) -> Placement:
    """The placement with micro-batches cut that hold more than ``max_samples`` samples. num_tokens: [S]."""
    if np.bincount(placement.batch_of).max(initial=0) <= max_samples:
        return placement
    longest_first = np.argsort(-num_tokens, kind="stable")
    return _parted(placement, dealt(placement.batch_of, longest_first, max_samples), sync)


def _parted(placement: Placement, part_of: Ints, sync: str) -> Placement:
    """Every micro-batch as the parts that its samples were given. part_of: [S]."""
    # [2, M'] micro-batch and part of the new ones
    pairs = np.stack([placement.batch_of, part_of])
    new, batch_of = np.unique(pairs, axis=1, return_inverse=True)
    old, part = new
    first_rank, degree = placement.first_rank[old], placement.cp_degree[old]
    slot = _slots(placement.slot[old], part, first_rank, degree, sync)
    return Placement(first_rank=first_rank, cp_degree=degree, slot=slot, batch_of=batch_of.reshape(-1))


def _first_fit(units: Ints, room: Ints) -> Ints:
    """[N] part of each sample: the first with room for all its units, largest share of a limit first."""
    share = (units / room[:, None]).max(axis=0)
    parts: list[Ints] = []
    part_of: Ints = np.zeros(units.shape[1], np.int64)
    for sample in np.argsort(-share, kind="stable").tolist():
        fits = (number for number, left in enumerate(parts) if np.all(units[:, sample] <= left))
        number = next(fits, len(parts))
        if number == len(parts):
            parts.append(room.copy())
        parts[number] -= units[:, sample]
        part_of[sample] = number
    return part_of


def _slots(old_slot: Ints, part: Ints, first_rank: Ints, degree: Ints, sync: str) -> Ints:
    """[M'] slots of the parts, in the order of the slots that they come from."""
    if sync == "micro_batch":
        parts_of_slot = np.zeros(int(old_slot.max()) + 1, np.int64)
        np.maximum.at(parts_of_slot, old_slot, part + 1)
        return (np.cumsum(parts_of_slot) - parts_of_slot)[old_slot] + part
    free = np.zeros(int((first_rank + degree).max()), np.int64)
    slot: Ints = np.zeros(old_slot.size, np.int64)
    for m in np.lexsort((part, first_rank, old_slot)).tolist():
        group = slice(int(first_rank[m]), int(first_rank[m] + degree[m]))
        slot[m] = free[group].max()
        free[group] = slot[m] + 1
    return slot
