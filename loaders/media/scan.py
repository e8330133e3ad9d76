"""One pass over a source: text and headers in, lengths and loads out. Nothing is decoded."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.media.blobs import Blob, name_of
from loaders.media.config import KINDS, MediaKind, MediaRules
from loaders.media.errors import MediaError
from loaders.media.expand import num_loss_tokens, places_of, repeats_of, wrap_of
from loaders.media.fitting import Item, Verdict, fit
from loaders.media.headers import audio_header, image_header, video_header
from loaders.media.rules import Counts, TokensPerSecond, VideoGrid, WhisperFrames, check_tokens
from loaders.media.table import COUNTED, MediaTable, joined
from loaders.quarantine import Quarantine, RejectedMedium
from loaders.sources.base import Source

logger = logging.getLogger(__name__)

BLOCK = 256
"""Rows looked at together."""

Header = tuple[float, float, float, float]


def scan_media(source: Source, rules: MediaRules, quarantine: Quarantine, *, threads: int = 8) -> MediaTable:
    """Look at all rows of ``source``.

    Args:
        source: text with placeholders, and the media in columns.
        rules: what the media become.
        quarantine: takes the rows that cannot be used, under ``on_bad="skip"``.
        threads: read headers of media that lie in files of their own.

    Raises:
        ValueError: a medium that cannot be read or a sample that is too large, where the rules say "error".
        RuntimeError: too many rejected rows.
    """
    parts = []
    with ThreadPoolExecutor(max_workers=max(threads, 1)) as pool:
        for first in _progress(range(0, len(source), BLOCK), source.name):
            numbers = np.arange(first, min(first + BLOCK, len(source)))
            parts.append(_Block(source, numbers, rules, quarantine, pool).columns())
    if not parts:
        empty = _Block(source, np.zeros(0, np.int64), rules, quarantine, None)
        parts.append(empty.columns())
    table = joined(parts)
    _tell(source.name, table, rules)
    return table


def _progress(blocks: range, name: str) -> Iterator[int]:
    if len(blocks) < 8 or not sys.stderr.isatty():
        yield from blocks
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(blocks, f"media of {name}", console=Console(stderr=True), transient=True)


def _tell(name: str, table: MediaTable, rules: MediaRules) -> None:
    counts = table.counts
    messages = {
        "clipped": "%d media are longer than their rule allows and are clipped",
        "dropped": f"%d samples dropped for more than {rules.max_tokens} tokens or {dict(rules.max_units)}",
        "media_dropped": "%d media are left out of samples that were too large",
        "shrunk": "%d pictures are given fewer pixels, so that their samples fit",
        "rejected": "%d samples are rejected for media that cannot be used",
    }
    for key, message in messages.items():
        if counts[key]:
            logger.warning("%s: " + message, name, counts[key])


def media_of(value: Any) -> list[Blob]:
    """The media in a column's value: null, one, or a list of them."""
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, np.ndarray) and value.dtype == object:
        return list(value)
    return [value]


def column_of(columns: Any, kind: MediaKind, source: Source) -> list[Any]:
    """A source's media column. Raises ValueError when the source does not give it."""
    if kind.column not in columns:
        has = ", ".join(map(str, columns)) or "none"
        raise ValueError(
            f"{source.name} gives no column {kind.column!r} (further columns: {has}); open it with "
            f"open_source(..., carry=[{kind.column!r}])."
        )
    return list(columns[kind.column])


def header_of(kind: str, blob: Blob, rules: MediaRules) -> Header:
    """The four numbers of `Planned.header`. Raises MediaError."""
    if kind == "image":
        image = image_header(blob, max_pixels=rules.max_image_pixels)
        return float(image.width), float(image.height), 0.0, 0.0
    if kind == "audio":
        sound = audio_header(blob)
        return float(sound.num_samples), float(sound.sample_rate), float(sound.channels), 0.0
    video = video_header(blob)
    return float(video.width), float(video.height), float(video.num_frames), float(video.fps)


def count(rule: Any, headers: NDArray[np.float64]) -> Counts:
    """What media of one kind become. headers: [I, 4]. Raises MediaError when one of them can become
    nothing.
    """
    whole = headers.astype(np.int64)
    if isinstance(rule, VideoGrid):
        counts = rule.count(whole[:, 0], whole[:, 1], whole[:, 2], headers[:, 3])
    else:
        assert isinstance(rule, WhisperFrames | TokensPerSecond) or hasattr(rule, "count")
        counts = rule.count(whole[:, 0], whole[:, 1])
    check_tokens(counts)
    return counts


class _Block:
    """Some rows of a source while they are looked at."""

    def __init__(
        self,
        source: Source,
        numbers: NDArray[np.int64],
        rules: MediaRules,
        quarantine: Quarantine,
        pool: ThreadPoolExecutor | None,
    ) -> None:
        self.source, self.numbers, self.rules, self.quarantine, self.pool = (
            source,
            numbers,
            rules,
            quarantine,
            pool,
        )
        self.rows = source.read(numbers)
        self.bad: dict[int, RejectedMedium] = {}
        self.blobs: list[list[Blob]] = [[] for _ in numbers]
        self.items: list[list[Item]] = [[] for _ in numbers]
        for name, kind in rules.kinds().items():
            values = column_of(self.rows.columns, kind, source) if numbers.size else []
            for row, value in enumerate(values):
                self._place(row, name, kind, media_of(value))

    def _place(self, row: int, name: str, kind: MediaKind, blobs: list[Blob]) -> None:
        """Find the placeholders of one row's media of one kind."""
        if not self._ids(row).size:  # an empty sample is skipped, whatever else it has
            return
        try:
            places = places_of(self._ids(row), kind.placeholder, len(blobs), name)
        except MediaError as error:
            self._reject(row, name, -1, "", str(error))
            return
        for index, (blob, place) in enumerate(zip(blobs, places.tolist(), strict=True)):
            wrapped = len(wrap_of(self._ids(row), kind.placeholder, place))
            self.items[row].append(Item(kind=name, index=index, place=place, wrapped=wrapped))
            self.blobs[row].append(blob)

    def _ids(self, row: int) -> NDArray[Any]:
        return self.rows.input_ids[self.rows.offsets[row] : self.rows.offsets[row + 1]]

    def _labels(self, row: int) -> NDArray[Any] | None:
        if self.rows.labels is None:
            return None
        return self.rows.labels[self.rows.offsets[row] : self.rows.offsets[row + 1]]

    def _reject(self, row: int, kind: str, index: int, path: str, reason: str) -> None:
        if row in self.bad:
            return
        medium = RejectedMedium(
            source=self.source.name,
            row=int(self.numbers[row]),
            kind=kind,
            index=index,
            path=path,
            reason=reason,
        )
        if self.rules.on_bad == "error":
            what = f"{kind} {index} ({path})" if index >= 0 else kind
            raise ValueError(
                f"{self.source.origin(medium.row)}, {what}: {reason}. Repair the sample, or pass "
                'on_bad="skip" to leave such samples out and count them.'
            )
        self.bad[row] = medium

    def columns(self) -> dict[str, NDArray[Any]]:
        """The block's part of the table."""
        self._read_headers()
        clipped = self._count()
        media = sum(len(items) for items in self.items)
        lengths, loss = np.zeros(len(self.items), np.int64), np.zeros(len(self.items), np.int64)
        tally = dict.fromkeys(COUNTED, 0) | {"clipped": clipped, "media": media, "rejected": len(self.bad)}
        for medium in self.bad.values():
            self.quarantine.add(medium)
        for row in range(len(self.items)):
            if row in self.bad or not self._ids(row).size:
                continue
            verdict = self._fit(row)
            self.items[row] = list(verdict.items)
            tally["media_dropped"] += verdict.left_out
            tally["shrunk"] += verdict.shrunk
            tally["dropped"] += not verdict.fits
            if verdict.fits:
                lengths[row], loss[row] = self._lengths(row)
        return self._arrays(lengths, loss, tally)

    def _read_headers(self) -> None:
        wanted = [
            (row, at)
            for row, items in enumerate(self.items)
            if row not in self.bad
            for at in range(len(items))
        ]

        def look(job: tuple[int, int]) -> Header | MediaError:
            row, at = job
            try:
                return header_of(self.items[row][at].kind, self.blobs[row][at], self.rules)
            except MediaError as error:
                return error

        in_files = any(isinstance(self.blobs[row][at], str) for row, at in wanted)
        apply = (
            self.pool.map if self.pool is not None and in_files else map
        )  # threads only help to wait for files
        for (row, at), found in zip(wanted, apply(look, wanted), strict=True):
            item = self.items[row][at]
            if isinstance(found, MediaError):
                self._reject(row, item.kind, item.index, name_of(self.blobs[row][at]), str(found))
            else:
                self.items[row][at] = replace(item, header=found)

    def _count(self) -> int:
        """Tokens and units of all media; how many are clipped."""
        clipped = 0
        for name, kind in self.rules.kinds().items():
            places = [
                (row, at)
                for row, items in enumerate(self.items)
                if row not in self.bad
                for at, item in enumerate(items)
                if item.kind == name
            ]
            if not places:
                continue
            for part, counts in self._counted(kind.rule, places):
                clipped += int(counts.clipped.sum())
                for number, (row, at) in enumerate(part):
                    self.items[row][at] = replace(
                        self.items[row][at],
                        tokens=int(counts.tokens[number]),
                        units=int(counts.units[number]),
                        grid=tuple(counts.grid[number].tolist()),
                    )
        return clipped

    def _counted(
        self, rule: Any, places: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[Sequence[tuple[int, int]], Counts]]:
        """All at once; one by one to find the bad ones when there are any."""
        headers = np.array([self.items[row][at].header for row, at in places], np.float64)
        try:
            yield places, count(rule, headers)
        except MediaError:
            for number, (row, at) in enumerate(places):
                try:
                    yield [(row, at)], count(rule, headers[number : number + 1])
                except MediaError as error:
                    path = name_of(self.blobs[row][at])
                    self._reject(row, self.items[row][at].kind, self.items[row][at].index, path, str(error))

    def _fit(self, row: int) -> Verdict:
        text = self._ids(row).size - len(self.items[row])
        verdict = fit(sorted(self.items[row], key=lambda item: item.place), text, self.rules)
        if not verdict.fits and self.rules.oversize == "error":
            raise ValueError(
                f"{self.source.origin(int(self.numbers[row]))}: {verdict.why}. Raise the limit, or choose "
                'oversize="drop", "drop_media" or "shrink".'
            )
        return verdict

    def _lengths(self, row: int) -> tuple[int, int]:
        placeholders = self.rules.placeholders()
        tokens = {
            name: [
                item.tokens
                for item in sorted(self.items[row], key=lambda item: item.index)
                if item.kind == name
            ]
            for name in placeholders
        }
        repeats = repeats_of(self._ids(row), placeholders, tokens)
        return int(repeats.sum()), num_loss_tokens(self._ids(row), self._labels(row), placeholders, repeats)

    def _arrays(
        self, lengths: NDArray[np.int64], loss: NDArray[np.int64], tally: dict[str, int]
    ) -> dict[str, NDArray[Any]]:
        items = [item for row in self.items for item in row]
        return {
            "offsets": np.array([len(row) for row in self.items], np.int64),
            "kind": np.array([KINDS.index(item.kind) for item in items], np.int8),
            "index": np.array([item.index for item in items], np.int32),
            "header": np.array([item.header for item in items], np.float64).reshape(-1, 4),
            "tokens": np.array([item.tokens for item in items], np.int64),
            "units": np.array([item.units for item in items], np.int64),
            "grid": np.array([item.grid for item in items], np.int64).reshape(-1, 3),
            "lengths": lengths,
            "loss_tokens": loss,
            "tallies": np.array([tally[name] for name in COUNTED], np.int64),
        }
