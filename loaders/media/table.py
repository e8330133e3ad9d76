"""What is known of all media of a source before any of them is decoded."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.media.config import KINDS, PHASE_OF
from loaders.media.decode import Planned

logger = logging.getLogger(__name__)

COUNTED = ("media", "clipped", "rejected", "dropped", "media_dropped", "shrunk")
"""What `MediaTable.counts` counts, in its order."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MediaTable:
    """Headers, counts and what was decided. Axes: S = rows of the source, M = their media.

    A row's media stand in the order of their placeholders. A medium that is left out has 0 tokens.
    """

    offsets: NDArray[np.int64]
    """[S + 1] Row r has media ``offsets[r] .. offsets[r + 1] - 1``."""
    kind: NDArray[np.int8]
    """[M] Index into `KINDS`."""
    index: NDArray[np.int32]
    """[M] The how-manieth of its kind in its row."""
    header: NDArray[np.float64]
    """[M, 4] See `Planned.header`."""
    tokens: NDArray[np.int64]
    """[M] Language tokens."""
    units: NDArray[np.int64]
    """[M] Patches or frames."""
    grid: NDArray[np.int64]
    """[M, 3] See `Counts.grid`."""
    lengths: NDArray[np.int64]
    """[S] Tokens of each row with its placeholders expanded; 0 for empty, rejected and dropped rows."""
    loss_tokens: NDArray[np.int64]
    """[S] Labels that count."""
    tallies: NDArray[np.int64]
    """Numbers of `COUNTED`."""

    @property
    def counts(self) -> dict[str, int]:
        """Media there are and are clipped; rows rejected and dropped; media dropped and shrunk to fit
        limits.
        """
        return dict(zip(COUNTED, self.tallies.tolist(), strict=True))

    def planned(self, row: int) -> list[Planned]:
        """The media of a row."""
        return [
            Planned(
                kind=KINDS[self.kind[at]],
                index=int(self.index[at]),
                header=tuple(self.header[at].tolist()),
                tokens=int(self.tokens[at]),
                units=int(self.units[at]),
                grid=tuple(self.grid[at].tolist()),
            )
            for at in range(int(self.offsets[row]), int(self.offsets[row + 1]))
        ]

    def media(self, kinds: tuple[str, ...]) -> dict[str, NDArray[np.bool_]]:
        """Whether each row has media of a kind that are not left out, [S] by kind."""
        row = np.repeat(np.arange(self.lengths.size), np.diff(self.offsets))
        used = (self.tokens > 0) & (self.lengths[row] > 0)
        found = {}
        for kind in kinds:
            found[kind] = np.zeros(self.lengths.size, np.bool_)
            found[kind][row[used & (self.kind == KINDS.index(kind))]] = True
        return found

    def media_tokens(self, kinds: tuple[str, ...]) -> dict[str, NDArray[np.int64]]:
        """Language tokens of each row's media of a kind, [S] by kind; 0 where the row is not used."""
        row = np.repeat(np.arange(self.lengths.size), np.diff(self.offsets))
        used = self.tokens * (self.lengths[row] > 0)
        return {
            kind: np.bincount(row, used * (self.kind == KINDS.index(kind)), self.lengths.size).astype(
                np.int64
            )
            for kind in kinds
        }

    def phases(self, names: tuple[str, ...]) -> dict[str, NDArray[np.int64]]:
        """Units of each row by phase, [S] each; 0 where the row is not used."""
        row = np.repeat(np.arange(self.lengths.size), np.diff(self.offsets))
        used = (self.tokens > 0) & (self.lengths[row] > 0)
        phase_of_kind = np.array(
            [names.index(PHASE_OF[kind]) if PHASE_OF[kind] in names else -1 for kind in KINDS]
        )
        phase = phase_of_kind[self.kind]
        return {
            name: np.bincount(row, self.units * (used & (phase == number)), self.lengths.size).astype(
                np.int64
            )
            for number, name in enumerate(names)
        }


def save_table(table: MediaTable, path: str, fingerprint: str) -> None:
    """Keep a table beside the data; written whole or not at all."""
    held: dict[str, Any] = {field.name: getattr(table, field.name) for field in fields(table)}
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{uuid.uuid4().hex}.tmp.npz")
    np.savez(partial, fingerprint=np.array(fingerprint), **held)
    partial.replace(target)


def load_table(path: str, fingerprint: str) -> MediaTable | None:
    """The kept table, if it is there and of the same data and rules."""
    if not Path(path).exists():
        return None
    try:
        with np.load(path) as held:
            if str(held["fingerprint"]) != fingerprint:
                logger.info("%s is of other data or rules; the media are looked at again", path)
                return None
            return MediaTable(**{field.name: held[field.name] for field in fields(MediaTable)})
    except (OSError, KeyError, ValueError) as error:
        logger.warning("%s cannot be read (%s); the media are looked at again", path, error)
        return None


def joined(parts: Sequence[Mapping[str, NDArray[Any]]]) -> MediaTable:
    """Tables of consecutive blocks of rows as one; ``offsets`` of a part are its rows' numbers of media."""
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name != "tallies"}
    counts = columns.pop("offsets")
    tallies = np.sum([part["tallies"] for part in parts], axis=0)
    return MediaTable(offsets=np.concatenate([[0], np.cumsum(counts)]), tallies=tallies, **columns)
