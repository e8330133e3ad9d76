"""All rows of a run, known by their lengths, and what becomes of each under a cap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.packing_job import scan
from loaders.packing_job.inputs import Input, Task
from loaders.packing_job.settings import PackSettings
from packing import Packs, pack


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Corpus:
    """Axes: I = inputs, B = blocks, S = rows, block after block."""

    names: tuple[str, ...]
    """[I] Names of the inputs."""
    source: NDArray[np.int32]
    """[B] Input of each block."""
    task: NDArray[np.int64]
    """[B] First-pass task that a block belongs to."""
    part: NDArray[np.int64]
    """[B] Number of the block within its task."""
    first_row: NDArray[np.int64]
    """[B] Row within its input that the block begins with."""
    offsets: NDArray[np.int64]
    """[B + 1] Block b holds rows ``offsets[b] .. offsets[b + 1] - 1`` of the corpus."""
    lengths: NDArray[np.signedinteger[Any]]
    """[S] Tokens of each row; 0 where empty, null or rejected."""
    reach: NDArray[np.signedinteger[Any]] | None
    """[S] First (or last) label of each row, see `label_reach`; None where no row has a mask."""
    num_null: NDArray[np.int64]
    """[I] Rows that are null."""
    rejects: tuple[tuple[dict[str, Any], ...], ...]
    """[I] Origin and reason of the rows that cannot be used."""

    @property
    def num_tokens(self) -> NDArray[np.int64]:
        """[B] Tokens of each block."""
        total = np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))
        return np.diff(total[self.offsets])

    def rows_of(self, source: int) -> slice:
        """Where an input's rows stand; its blocks follow one another."""
        blocks = np.flatnonzero(self.source == source)
        if not blocks.size:
            return slice(0, 0)
        return slice(int(self.offsets[blocks[0]]), int(self.offsets[blocks[-1] + 1]))


def read_corpus(tasks: Sequence[Task], inputs: Sequence[Input], folder: Path) -> Corpus:
    """Put the results of all first-pass tasks together."""
    source, task_of, part, rows, lengths, reaches = [], [], [], [], [], []
    num_null = np.zeros(len(inputs), np.int64)
    rejects: list[list[dict[str, Any]]] = [[] for _ in inputs]
    for task in tasks:
        result = scan.load(folder, task.number)
        source.append(np.full(result.rows.size, task.source, np.int32))
        task_of.append(np.full(result.rows.size, task.number, np.int64))
        part.append(np.arange(result.rows.size))
        rows.append(result.rows)
        lengths.append(result.lengths)
        reaches.append(result.reach)
        num_null[task.source] += result.num_null
        rejects[task.source].extend(result.rejects)
    all_rows, all_sources = _joined(rows), _joined(source).astype(np.int32)
    offsets = np.concatenate(([0], np.cumsum(all_rows, dtype=np.int64)))
    begins = np.searchsorted(all_sources, np.arange(len(inputs)))
    first_of_source = offsets[begins] if all_rows.size else np.zeros(len(inputs), np.int64)
    return Corpus(
        names=tuple(one.name for one in inputs),
        source=all_sources,
        task=_joined(task_of),
        part=_joined(part),
        first_row=offsets[:-1] - first_of_source[all_sources],
        offsets=offsets,
        lengths=_joined(lengths),
        reach=_joined_reach(reaches, lengths),
        num_null=num_null,
        rejects=tuple(map(tuple, rejects)),
    )


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)


def _joined_reach(
    reaches: Sequence[NDArray[Any] | None], lengths: Sequence[NDArray[Any]]
) -> NDArray[np.signedinteger[Any]] | None:
    if all(reach is None for reach in reaches):
        return None
    pairs = zip(reaches, lengths, strict=True)
    return np.concatenate([np.where(n > 1, 1, -1) if reach is None else reach for reach, n in pairs])


def left_without_labels(
    lengths: NDArray[Any], reach: NDArray[Any] | None, settings: PackSettings, max_tokens: int
) -> NDArray[np.bool_]:
    """[S] Rows that have labels, all of which truncation would cut off."""
    if reach is None or settings.oversize not in ("truncate", "truncate_left"):
        return np.zeros(lengths.size, bool)
    too_long = (lengths > max_tokens) & (reach >= 0)
    if settings.oversize == "truncate":
        return too_long & (reach >= max_tokens)
    return too_long & (reach <= lengths - max_tokens)  # the first token that is kept has no label either


def packed(
    lengths: NDArray[Any],
    reach: NDArray[Any] | None,
    settings: PackSettings,
    max_tokens: int,
    *,
    strategy: str | None = None,
    seed: int | None = None,
) -> Packs:
    """Pack rows as the settings say; rows left without labels count as empty."""
    if reach is not None and not settings.keep_unlabelled:
        lengths = np.where(left_without_labels(lengths, reach, settings, max_tokens), 0, lengths)
    strategy = settings.strategy if strategy is None else strategy
    return pack(
        lengths,
        max_tokens,
        strategy=strategy,
        oversize=settings.oversize,
        align=settings.align,
        max_samples=settings.max_samples,
        seed=seed,
        cost=relative_cost(lengths, max_tokens) if strategy == "balanced" else None,
    )


def relative_cost(lengths: NDArray[Any], max_tokens: int) -> NDArray[np.float64]:
    """[S] Work of each sample in a generic decoder: attention costs as much as the rest at 32K tokens."""
    tokens = np.minimum(lengths, max_tokens).astype(np.float64)
    cost: NDArray[np.float64] = tokens * (1.0 + tokens / 32768.0)
    return cost


def check_fit(corpus: Corpus, settings: PackSettings, origin_of_row: Any) -> None:
    """Refuse rows above the smallest cap under ``oversize="error"``, before anything is written."""
    cap = min(settings.max_tokens)
    if settings.oversize != "error":
        return
    too_long = np.flatnonzero(corpus.lengths > cap)
    if too_long.size:
        row = int(too_long[0])
        raise ValueError(
            f"{too_long.size} of {corpus.lengths.size} samples are longer than max_tokens {cap}; "
            f"{origin_of_row(row)} has {corpus.lengths[row]}. "
            "Choose --oversize drop, truncate, truncate_left or split, or raise --max-tokens."
        )
