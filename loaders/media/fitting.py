"""What becomes of a sample that is larger than it may be. A medium is kept whole or left out whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loaders.media.config import KINDS, PHASE_OF, MediaRules
from loaders.media.rules import PatchGrid

SHRINK = 0.9
"""Factor by which the area of a sample's pictures falls until it fits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One medium while its sample is looked at."""

    kind: str
    index: int
    place: int
    """Of its placeholder in the text."""
    header: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    tokens: int = 0
    units: int = 0
    grid: tuple[int, ...] = (0, 0, 0)
    wrapped: int = 0
    """Tokens around the placeholder that go with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A sample's media after the limits were applied."""

    items: Sequence[Item]
    fits: bool = True
    left_out: int = 0
    shrunk: int = 0
    why: str = ""
    """Which limit it does not fit."""


def fit(items: Sequence[Item], text_tokens: int, rules: MediaRules) -> Verdict:
    """Apply a sample's limits.

    Args:
        items: its media, in the order of their placeholders.
        text_tokens: tokens of the text without placeholders.
        rules: limits, and what becomes of a sample above them.
    """
    why, _ = excess(items, text_tokens, rules)
    if not why:
        return Verdict(items=items)
    if rules.oversize == "drop_media":
        kept = _without_last(items, text_tokens, rules)
        if kept is not None:
            left_out = sum(new.tokens < old.tokens for new, old in zip(kept, items, strict=True))
            return Verdict(items=kept, left_out=left_out)
    elif rules.oversize == "shrink":
        smaller = _shrunk(items, text_tokens, rules)
        if smaller is not None:
            shrunk = sum(new.grid != old.grid for new, old in zip(smaller, items, strict=True))
            return Verdict(items=smaller, shrunk=shrunk)
    return Verdict(items=items, fits=False, why=why)


def excess(items: Sequence[Item], text_tokens: int, rules: MediaRules) -> tuple[str, tuple[str, ...]]:
    """The first limit that the sample passes, in words, and the kinds of media that count towards it."""
    tokens = text_tokens + sum(item.tokens - item.wrapped * (item.tokens == 0) for item in items)
    if rules.max_tokens is not None and tokens > rules.max_tokens:
        return f"the sample has {tokens} tokens, max_tokens is {rules.max_tokens}", KINDS
    for phase, most in rules.max_units.items():
        kinds = tuple(kind for kind in KINDS if PHASE_OF[kind] == phase)
        units = sum(item.units for item in items if item.kind in kinds)
        if units > most:
            return f"the sample has {units} units of {phase}, max_units is {most}", kinds
    return "", ()


def _without_last(items: Sequence[Item], text_tokens: int, rules: MediaRules) -> list[Item] | None:
    """Media left out from the sample's end on, of the kinds that are too much; ``None`` if text alone is."""
    kept = list(items)
    for at in reversed(range(len(kept))):
        why, kinds = excess(kept, text_tokens, rules)
        if not why:
            break
        if kept[at].kind in kinds:
            kept[at] = replace(kept[at], tokens=0, units=0)
    return None if excess(kept, text_tokens, rules)[0] else kept


def _shrunk(items: Sequence[Item], text_tokens: int, rules: MediaRules) -> list[Item] | None:
    """Pictures with equally much less room each; ``None`` where the least room is still too much."""
    rule = rules.image.rule if rules.image is not None else None
    if not isinstance(rule, PatchGrid):
        return None
    room = float(rule.max_pixels)
    while room > rule.min_pixels:
        room = max(room * SHRINK, rule.min_pixels)
        smaller = replace(rule, max_pixels=int(room))
        tried = [_counted(item, smaller) if item.kind == "image" else item for item in items]
        if not excess(tried, text_tokens, rules)[0]:
            return tried
    return None


def _counted(item: Item, rule: PatchGrid) -> Item:
    size = (np.array([int(side)], np.int64) for side in item.header[:2])
    counts = rule.count(*size)
    grid = tuple(counts.grid[0].tolist())
    return replace(item, tokens=int(counts.tokens[0]), units=int(counts.units[0]), grid=grid)
