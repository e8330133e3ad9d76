"""The output of ``evenload pack`` as a source again: a row is a sample, in the order of the packs.

A loader packs and balances samples itself, for the ranks and costs at hand; so packs are opened as the
samples they hold. ``pack_offsets()`` tells which of them shared a pack.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loaders.sources.arrow import ArrowSource, open_batches
from loaders.sources.base import Rows, Source
from loaders.sources.chunked import ChunkedSource
from loaders.sources.files import DataFile, find_files
from loaders.sources.flat import AnyRuns, FlatChunk, Runs, check_columns, list_runs
from loaders.sources.layout import Layout
from loaders.sources.megatron import MegatronSource
from loaders.sources.parquet import ParquetSource


def read_packed_manifest(folder: Any) -> dict[str, Any] | None:
    """The manifest when ``folder`` holds packs, else None.

    Raises:
        ValueError: the folder holds packs for several caps, or a run that was not finished.
    """
    if not isinstance(folder, str | os.PathLike) or not os.path.isdir(folder):
        return None
    path = Path(folder)
    try:
        manifest = json.loads((path / "manifest.json").read_text())
    except FileNotFoundError:
        caps = sorted((found.parent.name for found in path.glob("*/manifest.json")), key=len)
        if (path / ".evenload-pack").exists():
            raise ValueError(
                f"{path}: evenload pack has not finished here; run it again with --resume"
            ) from None
        if caps:
            raise ValueError(f"{path} holds packs of several sizes; open one: {path / caps[0]}") from None
        return None
    return manifest if isinstance(manifest, dict) and "evenload" in manifest else None


def open_packed(folder: str, manifest: dict[str, Any], name: str, **options: Any) -> Source:
    """Samples of a finished run, in the order of its packs."""
    kind = manifest["arguments"]["format"]
    files = [find_files(os.path.join(folder, file))[0] for file in manifest["files"]]
    if kind == "plan":
        return PlannedSource(files[0], manifest, name)
    if kind == "megatron":
        index = [file for file in files if file.path.endswith(".idx")]
        return MegatronSource(index, encoder=PackedColumns(align=1), name=name, **options)
    encoder = PackedColumns(align=manifest["arguments"]["align"])
    made = PackedParquetSource if kind == "parquet" else PackedArrowSource
    return made(files, encoder=encoder, name=name, **options)


@dataclass(frozen=True, kw_only=True)
class PackedColumns:
    """Encoder of packs: one row of the chunk for each sample of each pack."""

    align: int

    def wants(self, names: Sequence[str]) -> list[str]:
        """Tokens, borders, and labels where they were written."""
        needed = check_columns(["input_ids", "seq_lengths"], names)
        return [*needed, *(["labels"] if "labels" in names else [])]

    def encode(self, table: pa.Table) -> FlatChunk:
        """Views of the packs, cut at the borders of samples."""
        lengths = list_runs(table["seq_lengths"], "column 'seq_lengths'")
        tokens = list_runs(table["input_ids"], "column 'input_ids'")
        labels = list_runs(table["labels"], "column 'labels'") if "labels" in table.column_names else None
        sizes = flat_values(lengths).astype(np.int64)
        padded = -(-sizes // self.align) * self.align
        offsets = np.concatenate(([0], np.cumsum(padded)))
        first = np.concatenate(([0], np.cumsum(lengths.lengths)))
        within = offsets[:-1] - np.repeat(offsets[first[:-1]], lengths.lengths)
        cut = partial(_cut, within=within, sizes=sizes, per_pack=lengths.lengths)
        return FlatChunk(tokens=cut(tokens), labels=None if labels is None else cut(labels))

    def without_carried(self) -> PackedColumns:
        """Nothing is carried."""
        return self

    def json_types(self) -> Mapping[str, pa.DataType]:
        """Packs are not written as JSON."""
        return {}

    def identity(self) -> str:
        """The alignment, which says where samples begin."""
        return f"packed:{self.align}"


def _cut(
    packs: AnyRuns, *, within: NDArray[np.int64], sizes: NDArray[np.int64], per_pack: NDArray[np.int64]
) -> Runs:
    """One run a sample of one run a pack."""
    starts = np.repeat(packs.starts, per_pack) + within
    return Runs(values=packs.values, starts=starts, lengths=sizes, is_span=packs.is_span)


def flat_values(runs: AnyRuns) -> NDArray[Any]:
    """The values of all runs, end to end."""
    within = np.arange(int(runs.lengths.sum())) - np.repeat(
        np.cumsum(runs.lengths) - runs.lengths, runs.lengths
    )
    values: NDArray[Any] = runs.values[np.repeat(runs.starts, runs.lengths) + within]
    return values


class _PackedLayout(ChunkedSource):
    """Rows are samples, so a chunk has more of them than its table."""

    keeps_layout = False

    def find_layout(self) -> Layout:
        """The chunks of the format below, their samples counted."""
        below = super().find_layout()
        self._layout_found = below  # reading a table looks its chunk up
        per_pack = []
        for file, part in zip(below.file.tolist(), below.part.tolist(), strict=True):
            table, _ = self.read_table(file, part, ["seq_lengths"])
            per_pack.append(list_runs(table["seq_lengths"], "column 'seq_lengths'").lengths)
        counts = [int(counted.sum()) for counted in per_pack]
        self._samples_per_pack = np.concatenate(per_pack) if per_pack else np.zeros(0, np.int64)
        first_row = np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.int64)
        return dataclasses.replace(below, first_row=first_row)

    def pack_offsets(self) -> NDArray[np.int64]:
        """[P + 1] Samples ``offsets[p] .. offsets[p + 1] - 1`` shared pack p."""
        assert self.layout is not None
        return np.concatenate(([0], np.cumsum(self._samples_per_pack)))

    def row_origin(self, file: int, row: int) -> str:
        """File and sample within it."""
        return f"{self.files[file].path}, sample {row}"


class PackedParquetSource(_PackedLayout, ParquetSource):
    """Samples of parquet shards."""


class PackedArrowSource(_PackedLayout, ArrowSource):
    """Samples of Arrow shards."""


class PlannedSource(Source):
    """Samples of a plan, read from the untouched sources that it was made for."""

    def __init__(self, file: DataFile, manifest: dict[str, Any], name: str) -> None:
        from loaders.sources.open import open_source

        self.name = name
        self.file = file
        arguments = manifest["arguments"]
        self.sources = [
            open_source(
                one,
                column=arguments["column"],
                labels=arguments["labels"],
                vocab_size=arguments["vocab_size"],
                on_bad="error" if arguments["strict"] else "skip",
            )
            for one in arguments["inputs"]
        ]
        self._first = np.concatenate(([0], np.cumsum([len(source) for source in self.sources])))
        if self._first[-1] != manifest["counts"]["rows"]:
            raise ValueError(
                f"{file.path} was made for {manifest['counts']['rows']} rows, its inputs now have "
                f"{self._first[-1]}: make the plan again"
            )
        self._columns: dict[str, NDArray[np.int64]] | None = None

    @property
    def _plan(self) -> dict[str, NDArray[np.int64]]:
        if self._columns is None:
            table = pa.Table.from_batches(open_batches(self.file))
            runs = {name: list_runs(table[name], name) for name in ("sample_ids", "starts", "lengths")}
            self._columns = {name: flat_values(found).astype(np.int64) for name, found in runs.items()}
            counts = runs["lengths"].lengths
            self._columns["offsets"] = np.concatenate(([0], np.cumsum(counts)))
        return self._columns

    def __len__(self) -> int:
        return int(self._plan["lengths"].size)

    def lengths(self) -> NDArray[np.int64]:
        """[S] Tokens of each sample or piece."""
        return self._plan["lengths"]

    def loss_tokens(self) -> NDArray[np.int64]:
        """[S] Labels that count; where the sources mask tokens, cut samples are read to count theirs."""
        plan = self._plan
        lengths = np.concatenate([source.lengths() for source in self.sources])[plan["sample_ids"]]
        counts = np.concatenate([source.loss_tokens() for source in self.sources])[plan["sample_ids"]]
        masked = counts != np.maximum(lengths - 1, 0)
        counts = np.where(masked, counts, np.maximum(plan["lengths"] - 1, 0))
        for row in np.flatnonzero(masked & (plan["lengths"] != lengths)).tolist():
            labels = self.read(np.array([row])).labels
            counts[row] = 0 if labels is None else np.count_nonzero(labels[1:] != -100)
        return counts

    def pack_offsets(self) -> NDArray[np.int64]:
        """[P + 1] Samples ``offsets[p] .. offsets[p + 1] - 1`` shared pack p."""
        return self._plan["offsets"]

    def read(self, rows: NDArray[np.int64]) -> Rows:
        """The pieces, cut out of their rows."""
        rows = np.asarray(rows, np.int64)
        samples, starts = self._plan["sample_ids"][rows], self._plan["starts"][rows]
        lengths = self._plan["lengths"][rows]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        input_ids = np.empty(int(offsets[-1]), np.int32)
        labels: NDArray[np.int64] | None = None
        number = np.searchsorted(self._first, samples, side="right") - 1
        for source in np.unique(number).tolist():
            mine = np.flatnonzero(number == source)
            found = self.sources[source].read(samples[mine] - self._first[source])
            begin = found.offsets[:-1] + starts[mine]
            index = _indices(begin, lengths[mine])
            out = _indices(offsets[mine], lengths[mine])
            input_ids[out] = found.input_ids[index]
            if found.labels is not None or labels is not None:
                labels = input_ids.astype(np.int64) if labels is None else labels  # so far, all are labels
                labels[out] = (found.input_ids if found.labels is None else found.labels)[index]
        return Rows(input_ids=input_ids, offsets=offsets, labels=labels)

    def origin(self, row: int) -> str:
        """Where the sample lies in its source."""
        sample = int(self._plan["sample_ids"][row])
        source = int(np.searchsorted(self._first, sample, side="right")) - 1
        return self.sources[source].origin(sample - int(self._first[source]))

    def fingerprint(self) -> str:
        """The plan's and its sources'."""
        parts = [self.file.digest(), *(source.fingerprint() for source in self.sources)]
        return hashlib.blake2b("|".join(parts).encode(), digest_size=16).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        """The plan's columns are read again in each process."""
        return {**self.__dict__, "_columns": None}


def _indices(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    indices: NDArray[np.int64] = np.repeat(starts, lengths) + within
    return indices
