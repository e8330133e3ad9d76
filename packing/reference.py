"""Slow, obvious twins of the fast strategies: one sample at a time, a Python list a pack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

Packing = list[list[int]]
"""Sample indices of each pack."""


def best_fit(lengths: Sequence[int], capacity: int, max_samples: int | None = None) -> Packing:
    """Longest sample first, into the pack it leaves the least room in; among equals the last one touched."""
    packs: Packing = []
    room: list[int] = []
    touched: list[int] = []
    for turn, sample in enumerate(_longest_first(lengths)):
        fits = _with_room(packs, room, lengths[sample], max_samples)
        chosen = min(fits, key=lambda p: (room[p], -touched[p]), default=None)
        if chosen is None:
            chosen = len(packs)
            packs.append([])
            room.append(capacity)
            touched.append(turn)
        packs[chosen].append(sample)
        room[chosen] -= lengths[sample]
        touched[chosen] = turn
    return packs


def first_fit(lengths: Sequence[int], capacity: int, max_samples: int | None = None) -> Packing:
    """Longest sample first, into the first pack with room."""
    packs: Packing = []
    room: list[int] = []
    for sample in _longest_first(lengths):
        fits = _with_room(packs, room, lengths[sample], max_samples)
        if not fits:
            packs.append([])
            room.append(capacity)
        chosen = fits[0] if fits else -1
        packs[chosen].append(sample)
        room[chosen] -= lengths[sample]
    return packs


def next_fit(lengths: Sequence[int], capacity: int, max_samples: int | None = None) -> Packing:
    """Into the last pack, or a new one where that has no room."""
    packs: Packing = []
    room: list[int] = []
    for sample, length in enumerate(lengths):
        if length == 0:
            continue
        if not packs or len(packs) - 1 not in _with_room(packs, room, length, max_samples):
            packs.append([])
            room.append(capacity)
        packs[-1].append(sample)
        room[-1] -= length
    return packs


def _longest_first(lengths: Sequence[int]) -> list[int]:
    """Samples by falling length, equal ones in input order, empty ones left out."""
    return sorted((s for s in range(len(lengths)) if lengths[s] > 0), key=lambda s: -lengths[s])


def _with_room(packs: Packing, room: Sequence[int], length: int, max_samples: int | None) -> list[int]:
    return [
        p
        for p in range(len(packs))
        if room[p] >= length and (max_samples is None or len(packs[p]) < max_samples)
    ]


REFERENCE: MappingProxyType[str, Callable[..., Packing]] = MappingProxyType(
    {"best_fit": best_fit, "first_fit": first_fit, "next_fit": next_fit}
)
