"""Small corpora and runs for the tests of ``evenload pack``."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from loaders.packing_job.job import run
from loaders.packing_job.settings import PackSettings


def documents(count: int, seed: int = 0, longest: int = 120) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.lognormal(3.0, 0.9, count).astype(int) + 1, longest)
    return [rng.integers(1, 30_000, n).tolist() for n in lengths]


def write_parquet(path: Path, rows: list[Any], *, group: int = 40, **columns: Any) -> str:
    content = pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32())), **columns})
    pq.write_table(content, path, row_group_size=group)
    return str(path)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def pack(inputs: list[str], output: Path, *, max_tokens: Any = 128, **settings: Any) -> dict[str, Any]:
    """Run in this process; the manifest of the first cap."""
    return pack_all(inputs, output, max_tokens=max_tokens, **settings)[0]


def pack_all(
    inputs: list[str],
    output: Path,
    *,
    max_tokens: Any = 128,
    resume: bool = False,
    overwrite: bool = False,
    **settings: Any,
) -> list[dict[str, Any]]:
    caps = (max_tokens,) if isinstance(max_tokens, int) else tuple(max_tokens)
    chosen = PackSettings(inputs=tuple(inputs), output=str(output), max_tokens=caps, **settings)
    return run(chosen, Console(file=io.StringIO()), resume=resume, overwrite=overwrite)


def rows_of(output: Path, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for name in manifest["files"] for row in pq.read_table(output / name).to_pylist()]


def samples_of(rows: list[dict[str, Any]]) -> list[tuple[int, int, int, list[int], list[int]]]:
    """(source, row, start, ids, labels) of every sample of packs without alignment."""
    found = []
    for row in rows:
        at = 0
        keys = zip(row["source_ids"], row["row_ids"], row["row_starts"], row["seq_lengths"], strict=True)
        for source, number, start, length in keys:
            here = slice(at, at + length)
            found.append((source, number, start, row["input_ids"][here], row["labels"][here]))
            at += length
        assert at == len(row["input_ids"])
    return found


def digest(folder: Path) -> dict[str, str]:
    """sha256 of every file of an output folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
