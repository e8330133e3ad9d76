"""Where the rows of a source lie: chunks of files, found without decoding them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FileChunks:
    """The chunks of one file, in the order of its rows. Axis: C = chunks."""

    rows: Sequence[int] | NDArray[np.integer[Any]]
    """[C] Rows of each."""
    size_bytes: Sequence[int] | NDArray[np.integer[Any]]
    """[C] About what decoding it takes in memory."""
    places: Mapping[str, Sequence[int] | NDArray[np.integer[Any]]] = field(default_factory=dict)
    """[C] each: numbers that the format needs to find a chunk again."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layout:
    """The chunks of all files, as arrays alone, so that a large source is cheap to keep. Axis: C = chunks."""

    first_row: NDArray[np.int64]
    """[C + 1] Chunk c holds rows ``first_row[c] .. first_row[c + 1] - 1`` of the source."""
    file: NDArray[np.int32]
    """[C] Number of the chunk's file, rising."""
    part: NDArray[np.int64]
    """[C] Number of the chunk within its file."""
    size_bytes: NDArray[np.int64]
    """[C] About what decoding it takes in memory."""
    places: Mapping[str, NDArray[np.int64]] = field(default_factory=lambda: MappingProxyType({}))
    """[C] each: numbers that the format needs to find a chunk again."""
    broken: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """Files that are left out since they cannot be read, by number, and why."""

    def chunk_id(self, file: int, part: int) -> int:
        """Number of a file's chunk."""
        return int(np.searchsorted(self.file, file)) + part

    def first_of_file(self, file: int) -> int:
        """The source's row that is the first of a file."""
        return int(self.first_row[int(np.searchsorted(self.file, file))])


def join_files(found: Iterable[FileChunks | str]) -> Layout:
    """The layout over all files; a text in the place of a file's chunks says why it is left out."""
    rows, file_ids, parts, sizes = [], [], [], []
    places: dict[str, list[NDArray[np.int64]]] = {}
    broken: dict[int, str] = {}
    for number, one in enumerate(found):
        if isinstance(one, str):
            broken[number] = one
            continue
        count = len(one.rows)
        rows.append(_ints(one.rows))
        sizes.append(_ints(one.size_bytes))
        parts.append(np.arange(count))
        file_ids.append(np.full(count, number, np.int32))
        for name, values in one.places.items():
            places.setdefault(name, []).append(_ints(values))
    return Layout(
        first_row=np.concatenate(([0], np.cumsum(_joined(rows)))).astype(np.int64),
        file=_joined(file_ids).astype(np.int32),
        part=_joined(parts),
        size_bytes=_joined(sizes),
        places={name: _joined(values) for name, values in places.items()},
        broken=broken,
    )


def _ints(values: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    return np.asarray(values, dtype=np.int64)


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    return np.concatenate(arrays).astype(np.int64, copy=False) if arrays else np.zeros(0, np.int64)
