"""Any source with media in its columns: lengths with expanded placeholders, features decoded when read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.batches.joins import Join
from loaders.batches.labels import IGNORED
from loaders.media.blobs import name_of
from loaders.media.config import MediaRules
from loaders.media.decode import Features, Planned, blank, decode, position_span
from loaders.media.errors import MediaError
from loaders.media.expand import Expanded, expand
from loaders.media.positions import position_rows
from loaders.media.presence import filler_rows
from loaders.media.scan import column_of, media_of, scan_media
from loaders.media.table import MediaTable, load_table, save_table
from loaders.quarantine import Quarantine, RejectedMedium
from loaders.sources.base import Blocks, Rows, Source
from loaders.sources.once import once
from loaders.workers.slate import note


class MultimodalSource(Source):
    """Samples of text, pictures, sound and video.

    ``source`` gives ``input_ids`` with one placeholder token for each medium, and the media in columns:
    paths, URLs, bytes, open files, or dicts of ``bytes`` and ``path``. `lengths` looks at headers only;
    `read` decodes.

    What `read` returns always fits what was planned. A medium that turns out to be another than its header
    said is handled as ``rules.on_mismatch`` says; one that cannot be decoded leaves, under
    ``on_bad="skip"``, a sample of the planned length with black or silent features that trains nothing.

    Args:
        source: text and media.
        rules: what the media become.
        cache: a file that keeps what was found of the media, used again while data and rules are the same.
        threads: read headers of media that lie in files of their own.

    Memory: about 100 bytes a medium and 24 a row, in every process that reads.
    """

    divisible = False

    def __init__(
        self, source: Source, rules: MediaRules, *, cache: str | None = None, threads: int = 8
    ) -> None:
        if not isinstance(source, Source):
            raise TypeError(
                "MultimodalSource needs an opened source, such as open_source(path, carry=[...]), got "
                f"{type(source).__name__}."
            )
        if not isinstance(rules, MediaRules):
            raise TypeError(f"rules must be MediaRules, got {rules!r}.")
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise ValueError(f"threads must be a whole number of at least 1, got {threads!r}.")
        if cache is not None and (not isinstance(cache, str | os.PathLike) or Path(cache).is_dir()):
            raise ValueError(f"cache must be a file to keep what was found of the media in, got {cache!r}.")
        self.source = source
        self.rules = rules
        self.name = source.name
        self.cache = cache
        self.threads = threads
        self.quarantine = Quarantine(path=rules.quarantine, max_bad=rules.max_bad, num_rows=len(source))
        self._table: MediaTable | None = None

    def __len__(self) -> int:
        return len(self.source)

    @property
    def table(self) -> MediaTable:
        """What is known of the media; found once, by one pass over all rows."""
        if self._table is None:
            if self.cache is None:
                self._table = self._scan_media()
            else:
                self._table = self._kept_table(self.cache, self.fingerprint())
        return self._table

    def _scan_media(self) -> MediaTable:
        return scan_media(self.source, self.rules, self.quarantine, threads=self.threads)

    def _kept_table(self, cache: str, print_of_all: str) -> MediaTable:
        def make() -> MediaTable:
            table = self._scan_media()
            save_table(table, cache, print_of_all)
            return table

        return once(Path(cache), f"media of {self.name}", lambda: load_table(cache, print_of_all), make)

    def lengths(self) -> NDArray[np.int64]:
        """[S] Tokens of each row, media included; 0 for empty, rejected and dropped rows."""
        return self.table.lengths

    def loss_tokens(self) -> NDArray[np.int64]:
        """[S] Labels that count: none of a placeholder."""
        return self.table.loss_tokens

    def phases(self) -> Mapping[str, NDArray[np.int64]]:
        """Patches and frames of each row, [S] each: ``{"vision": ..., "audio": ...}``."""
        return self.table.phases(self.rules.phases())

    def media(self) -> Mapping[str, NDArray[np.bool_]]:
        """Which rows have media that are not left out, [S] by kind."""
        return self.table.media(tuple(self.rules.kinds()))

    def fillers(self) -> Mapping[str, Rows]:
        """The smallest picture, sound and video under these rules, each a sequence of its own."""
        return filler_rows(self.rules)

    def joins(self) -> Mapping[str, Join]:
        """How the features become inputs of the batch."""
        return self.rules.joins()

    def blocks(self) -> Blocks | None:
        """Those of the text, whose file may hold the media too."""
        return self.source.blocks()

    def origin(self, row: int) -> str:
        """Where the text lies."""
        return self.source.origin(row)

    def fingerprint(self) -> str:
        """Of the source and the rules; files that media lie in are not part of it."""
        parts = f"{self.source.fingerprint()}|{self.rules!r}"
        return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()

    # ------------------------------------------------------------------------------------------ payload

    def media_tokens(self) -> Mapping[str, NDArray[np.int64]]:
        """[S] language tokens of each row's media, by kind: the rows that an encoder makes for them."""
        return self.table.media_tokens(tuple(self.rules.kinds()))

    def read(self, rows: NDArray[np.int64], *, kinds: Collection[str] | None = None) -> Rows:
        """Decode the media of ``rows``.

        Args:
            rows: [N] which ones.
            kinds: decode only these; ``None``: all. Placeholders and positions are there in any case.

        Raises:
            RuntimeError: a medium cannot be decoded or is another than planned, where the rules say
                "error"; or too many samples are rejected.
        """
        held = self.source.read(rows)
        media = {
            name: column_of(held.columns, kind, self.source) for name, kind in self.rules.kinds().items()
        }
        reading = _Reading(self, held, tuple(self.rules.kinds()) if kinds is None else kinds)
        for at, row in enumerate(rows.tolist()):
            note(self, row)
            reading.add(at, row, {name: media_of(values[at]) for name, values in media.items()})
        return reading.rows()


class _Reading:
    """Samples while they are decoded."""

    def __init__(self, owner: MultimodalSource, held: Rows, kinds: Collection[str]) -> None:
        self.owner, self.held, self.kinds = owner, held, kinds
        self.samples: list[Expanded] = []
        self.values: list[dict[str, NDArray[Any]]] = []
        self.rejects: dict[int, str] = {}
        self.counts = {"corrected": 0, "repaired": 0}

    def add(self, at: int, row: int, media: Mapping[str, list[Any]]) -> None:
        """Decode one sample's media and expand its placeholders."""
        rules, held = self.owner.rules, self.held
        planned = self.owner.table.planned(row)
        span = slice(int(held.offsets[at]), int(held.offsets[at + 1]))
        labels = None if held.labels is None else held.labels[span]
        by_index = sorted(planned, key=lambda one: one.index)
        tokens = {name: [one.tokens for one in by_index if one.kind == name] for name in rules.kinds()}
        try:
            sample = expand(held.input_ids[span], labels, rules.placeholders(), tokens)
        except MediaError as error:
            raise RuntimeError(
                f"{self.owner.origin(row)}: {error}. The text is not what it was when its media were counted."
            ) from None
        features: dict[str, list[NDArray[Any]]] = {}
        for one in by_index:
            if one.tokens == 0 or one.kind not in self.kinds:
                continue
            for key, value in self._decode(at, row, one, media[one.kind]).items():
                features.setdefault(key, []).append(value)
        if at in self.rejects:
            sample.labels[:] = IGNORED
        self.samples.append(sample)
        joined = {key: np.concatenate(values) for key, values in features.items() if key in rules.joins()}
        self.values.append(joined | self._token_rows(sample, by_index))

    def _decode(self, at: int, row: int, planned: Planned, media: list[Any]) -> Features:
        owner, rules = self.owner, self.owner.rules
        if at in self.rejects:
            return blank(planned, rules)
        blob = media[planned.index] if planned.index < len(media) else b""
        where = f"{owner.origin(row)}, {planned.kind} {planned.index} ({name_of(blob)})"
        try:
            features, differs = decode(blob, planned, rules)
        except MediaError as error:
            if rules.on_bad == "error":
                raise RuntimeError(
                    f'{where}: {error}. Repair it, or pass on_bad="skip" to go on without such samples.'
                ) from None
            return self._rejected(at, row, planned, name_of(blob), str(error))
        if differs == 0:
            return features
        if differs <= rules.tolerance:
            self.counts["corrected"] += 1
            return features
        reason = f"it differs by {differs:.1%} from its header, more than the {rules.tolerance:.1%} tolerated"
        if rules.on_mismatch == "error":
            raise RuntimeError(f'{where}: {reason}. Choose on_mismatch="repair" or "drop" to go on.')
        if rules.on_mismatch == "drop":
            return self._rejected(at, row, planned, name_of(blob), reason)
        self.counts["repaired"] += 1
        return features

    def _rejected(self, at: int, row: int, planned: Planned, path: str, reason: str) -> Features:
        medium = RejectedMedium(
            source=self.owner.name, row=row, kind=planned.kind, index=planned.index, path=path, reason=reason
        )
        self.rejects[at] = str(medium)
        self.owner.quarantine.add(medium)
        return blank(planned, self.owner.rules)

    def _token_rows(self, sample: Expanded, planned: list[Planned]) -> dict[str, NDArray[Any]]:
        """Positions on several axes and numbers of features, where they are asked for."""
        rules = self.owner.rules
        rows: dict[str, NDArray[Any]] = {}
        spans = []
        for name, kind in rules.kinds().items():
            media = [one for one in planned if one.kind == name]
            for one, start in zip(media, sample.starts[name].tolist(), strict=True):
                span = position_span(one, start, rules) if start >= 0 else None
                spans += [] if span is None else [span]
            if rules.indices:
                mine = sample.input_ids == kind.token
                rows[f"{name}_index"] = np.where(mine, np.cumsum(mine) - 1, -1)[None]
        if rules.positions != "1d":
            spans.sort(key=lambda span: span.start)
            rows["position_ids"] = position_rows(
                rules.positions, sample.input_ids.size, spans, advance=rules.advance
            )
        return rows

    def rows(self) -> Rows:
        """All samples, laid end to end."""
        hidden = {kind.column for kind in self.owner.rules.kinds().values()}
        columns = {name: list(values) for name, values in self.held.columns.items() if name not in hidden}
        for key in self.owner.rules.joins():
            columns[key] = [values.get(key) for values in self.values]
        lengths = [sample.input_ids.size for sample in self.samples]
        empty = np.zeros(0, np.int64)
        return Rows(
            input_ids=np.concatenate([empty, *(sample.input_ids for sample in self.samples)]),
            offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
            labels=np.concatenate([empty, *(sample.labels for sample in self.samples)]),
            columns=columns,
            rejects=self.rejects,
            counts={name: count for name, count in self.counts.items() if count},
        )
