"""Each placeholder token becomes as many as its medium has language tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.batches.labels import IGNORED
from loaders.media.errors import MediaError

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Placeholder:
    """The token that stands for one medium in a sample's ``input_ids``."""

    token: int
    wrap: tuple[int, int] | None = None
    """Tokens just before and behind it, which go when the medium is left out."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Expanded:
    """A sample with its placeholders expanded. Axis: L = its tokens."""

    input_ids: Ints
    """[L]"""
    labels: Ints
    """[L] Unshifted; -100 on all placeholders."""
    starts: Mapping[str, Ints]
    """First token of each medium, by kind, in the order of the media; -1 for those left out."""


def places_of(input_ids: NDArray[np.integer[Any]], placeholder: Placeholder, count: int, kind: str) -> Ints:
    """[count] where the placeholders of one kind stand.

    Raises:
        MediaError: there are more or fewer than media.
    """
    found = np.flatnonzero(input_ids == placeholder.token)
    if found.size != count:
        raise MediaError(
            f"the text has {found.size} {kind} placeholders (token {placeholder.token}) for {count} media of "
            "this kind; there must be one for each"
        )
    return found


def repeats_of(
    input_ids: NDArray[np.integer[Any]],
    placeholders: Mapping[str, Placeholder],
    tokens: Mapping[str, Sequence[int] | Ints],
) -> Ints:
    """[L0] how often each token of the text is repeated.

    Args:
        input_ids: [L0] the text, with one placeholder for each medium.
        placeholders: by kind.
        tokens: language tokens of each medium, by kind; 0 leaves it out, with its placeholder and wrap.
    """
    repeats = np.ones(input_ids.size, np.int64)
    for kind, placeholder in placeholders.items():
        counts = np.asarray(tokens.get(kind, ()), np.int64)
        places = places_of(input_ids, placeholder, counts.size, kind)
        repeats[places] = counts
        for place in places[counts == 0]:
            repeats[wrap_of(input_ids, placeholder, int(place))] = 0
    return repeats


def wrap_of(input_ids: NDArray[np.integer[Any]], placeholder: Placeholder, place: int) -> list[int]:
    """Where the wrap of the placeholder at ``place`` stands; shorter where one or both are missing."""
    if placeholder.wrap is None:
        return []
    around = zip((place - 1, place + 1), placeholder.wrap, strict=True)
    return [at for at, token in around if 0 <= at < input_ids.size and input_ids[at] == token]


def expand(
    input_ids: NDArray[np.integer[Any]],
    labels: NDArray[np.integer[Any]] | None,
    placeholders: Mapping[str, Placeholder],
    tokens: Mapping[str, Sequence[int] | Ints],
) -> Expanded:
    """The sample as the model sees it; arguments as `repeats_of`, ``labels`` [L0] or ``None`` for all tokens.

    Raises:
        MediaError: placeholders and media differ in number.
    """
    repeats = repeats_of(input_ids, placeholders, tokens)
    masked = np.array(input_ids if labels is None else labels, np.int64)
    first = np.cumsum(repeats) - repeats
    starts = {}
    for kind, placeholder in placeholders.items():
        places = np.flatnonzero(input_ids == placeholder.token)
        masked[places] = IGNORED
        starts[kind] = np.where(repeats[places] > 0, first[places], -1)
    return Expanded(
        input_ids=np.repeat(np.asarray(input_ids, np.int64), repeats),
        labels=np.repeat(masked, repeats),
        starts=starts,
    )


def num_loss_tokens(
    input_ids: NDArray[np.integer[Any]],
    labels: NDArray[np.integer[Any]] | None,
    placeholders: Mapping[str, Placeholder],
    repeats: Ints,
) -> int:
    """Labels of the expanded sample that count, without expanding it: neither masked nor its first token."""
    counted = repeats > 0 if labels is None else (repeats > 0) & (labels != IGNORED)
    for placeholder in placeholders.values():
        counted = counted & (input_ids != placeholder.token)
    first = np.flatnonzero(repeats > 0)[:1]
    return int(np.count_nonzero(counted)) - int(np.count_nonzero(counted[first]))
