"""Megatron-core's indexed data sets as output; `loaders.sources.megatron` describes the index."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loaders.sources.flat import as_numpy
from loaders.sources.megatron import HEADER, MAGIC

INT32 = 4
"""Code of the token type."""


class MegatronShard:
    """Token ids of a shard, end to end, and beside them the lengths that the index is made of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(b"")
        self._lengths: list[NDArray[np.int32]] = []
        self._samples: list[NDArray[np.int64]] = []

    def columns(self, wanted: Sequence[str]) -> Sequence[str]:
        """Ids and lengths, whatever is wanted; labels to see that none is masked."""
        return ("input_ids", "labels", "seq_lengths")

    def write(self, rows: pa.Table) -> None:
        """Add packs. Raises ValueError where labels are masked, which the format cannot say."""
        ids = rows["input_ids"].combine_chunks()
        lengths = rows["seq_lengths"].combine_chunks()
        labels = as_numpy(rows["labels"].combine_chunks().flatten())
        if np.count_nonzero(labels == -100) > len(lengths.values):
            raise ValueError(
                "format megatron has no place for a loss mask, and some tokens are masked. "
                "Choose --format parquet or arrow, or --no-labels to train on every token."
            )
        with open(self.path, "ab") as file:
            file.write(as_numpy(ids.flatten()).astype("<i4", copy=False).tobytes())
        self._lengths.append(as_numpy(lengths.flatten()))
        self._samples.append(np.diff(as_numpy(lengths.offsets)))

    def __enter__(self) -> MegatronShard:
        return self

    def __exit__(self, *error: object) -> None:
        lengths = np.concatenate(self._lengths) if self._lengths else np.zeros(0, np.int32)
        samples = np.concatenate(self._samples) if self._samples else np.zeros(0, np.int64)
        with open(self.path, "ab") as file:
            file.write(lengths.astype("<i4").tobytes())
            file.write(samples.astype("<i8").tobytes())
            file.write(struct.pack("<QQ", lengths.size, samples.size))


def split_shard(path: Path) -> tuple[int, NDArray[np.int32], NDArray[np.int64]]:
    """Bytes of token ids at the front of a shard, lengths of its samples, and samples of each pack."""
    with open(path, "rb") as file:
        end = file.seek(-16, 2)
        num_samples, num_packs = struct.unpack("<QQ", file.read(16))
        size = end - 8 * num_packs - 4 * num_samples
        file.seek(size)
        lengths = np.frombuffer(file.read(4 * num_samples), "<i4")
        samples = np.frombuffer(file.read(8 * num_packs), "<i8")
    return size, lengths, samples


def write_index(path: Path, lengths: NDArray[np.int32], samples: NDArray[np.int64]) -> None:
    """The index over int32 tokens: a sequence for each sample, a document for each pack."""
    pointers = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)[:-1])) * 4 if lengths.size else lengths
    documents = np.concatenate(([0], np.cumsum(samples, dtype=np.int64)))
    with open(path, "wb") as file:
        file.write(MAGIC + HEADER.pack(1, INT32, lengths.size, documents.size))
        file.write(lengths.astype("<i4").tobytes())
        file.write(pointers.astype("<i8").tobytes())
        file.write(documents.astype("<i8").tobytes())


def join_shards(waiting: Path, shards: Sequence[str], target: Path) -> dict[str, dict[str, Any]]:
    """One ``train.bin`` and ``train.idx`` of all shards; returns their entries for the manifest."""
    from loaders.packing_job.atomic import sha256, whole_file

    lengths, samples = [], []
    with whole_file(target / "train.bin") as partial, open(partial, "wb") as out:
        for name in shards:
            size, shard_lengths, shard_samples = split_shard(waiting / name)
            lengths.append(shard_lengths)
            samples.append(shard_samples)
            with open(waiting / name, "rb") as part:
                while size and (piece := part.read(min(size, 1 << 22))):
                    out.write(piece)
                    size -= len(piece)
    with whole_file(target / "train.idx") as partial:
        write_index(partial, np.concatenate(lengths), np.concatenate(samples))
    paths = [target / "train.bin", target / "train.idx"]
    return {path.name: {"size_bytes": path.stat().st_size, "sha256": sha256(path)} for path in paths}
