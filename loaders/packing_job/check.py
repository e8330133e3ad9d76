"""``--check``: is the output of a run whole, and does every pack keep its promises?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from loaders.packing_job.atomic import read_json, sha256
from loaders.packing_job.folder import MANIFEST, WORK
from loaders.sources.flat import as_numpy


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a finished run. Raises ValueError when it is not one."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ValueError(f"{folder} must be the folder that evenload pack wrote, it {what}")
    manifest: dict[str, Any] | None = read_json(folder / MANIFEST)
    if manifest is None or "evenload" not in manifest:
        several = sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST}"))
        if several:
            raise ValueError(f"{folder} holds packs for several caps; name one of {', '.join(several)} in it")
        unfinished = (folder / WORK).exists()
        why = "the run was not finished; --resume goes on with it" if unfinished else f"no {MANIFEST} in it"
        raise ValueError(f"{folder} is not the output of evenload pack: {why}")
    return manifest


def check_folder(folder: Path) -> Iterator[str]:
    """Check files, packs and sums; yields a line for each thing found right.

    Raises:
        ValueError: with the file, and the pack in it, that is wrong.
    """
    manifest = read_manifest(folder)
    for name, entry in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path} is missing")
        if path.stat().st_size != entry["size_bytes"] or sha256(path) != entry["sha256"]:
            raise ValueError(f"{path} is not the file that was written: its size or sha256 differs")
    yield f"{folder}: {len(manifest['files'])} files are as they were written"
    kind = manifest["arguments"]["format"]
    if kind in ("plan", "megatron"):
        return
    packs, tokens = 0, 0
    for name in manifest["files"]:
        for first, rows in read_shard(folder / name, kind):
            check_packs(rows, manifest, f"{folder / name}, pack", packs_before=first)
            packs += rows.num_rows
            tokens += int(_list(rows, "seq_lengths")[0].sum(dtype=np.int64))
    if (packs, tokens) != (manifest["num_packs"], manifest["num_tokens"]):
        raise ValueError(
            f"{folder}: {packs} packs with {tokens} tokens, but the manifest tells of "
            f"{manifest['num_packs']} with {manifest['num_tokens']}"
        )
    yield f"{folder}: {packs} packs hold {tokens} tokens, none over {manifest['max_tokens']}"
    yield f"{folder}: positions restart at each sample, and labels are the tokens they stand for"


def read_shard(path: Path, kind: str) -> Iterator[tuple[int, pa.Table]]:
    """Parts of a shard, with the number of the first pack of each."""
    first = 0
    if kind == "parquet":
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group)
                yield first, rows
                first += rows.num_rows
    else:
        with pa.memory_map(str(path)) as mapped:
            for batch in pa.ipc.open_stream(mapped):
                yield first, pa.Table.from_batches([batch])
                first += batch.num_rows


def check_packs(rows: pa.Table, manifest: dict[str, Any], where: str, packs_before: int) -> None:
    """Cap, borders, positions and labels of each pack, as far as the columns are there."""
    arguments = manifest["arguments"]
    align, start = arguments["align"], arguments["position_start"]
    lengths, per_pack = _list(rows, "seq_lengths")
    padded = -(-lengths // align) * align
    pack_of = np.repeat(np.arange(rows.num_rows), per_pack)
    totals = np.bincount(pack_of, padded, rows.num_rows).astype(np.int64)

    def refuse(bad: NDArray[np.bool_], why: str) -> None:
        if bad.any():
            raise ValueError(f"{where} {packs_before + int(np.argmax(bad))}: {why}")

    refuse(totals > manifest["max_tokens"], f"more than {manifest['max_tokens']} tokens")
    refuse(np.bincount(pack_of[lengths < 1], minlength=rows.num_rows) > 0, "an empty sample")
    begins = np.concatenate(([0], np.cumsum(padded)))[:-1]
    token_pack = np.repeat(pack_of, padded)
    for name in ("input_ids", "position_ids", "labels"):
        if name in rows.column_names:
            _, sizes = _list(rows, name)
            refuse(sizes != totals, f"{name} is not as long as its samples")
    if "position_ids" in rows.column_names:
        expected = np.arange(int(padded.sum())) - np.repeat(begins, padded) + start
        wrong = _list(rows, "position_ids")[0] != expected
        refuse(
            np.bincount(token_pack[wrong], minlength=rows.num_rows) > 0,
            "positions do not restart at each sample",
        )
    if "labels" in rows.column_names:
        labels = _list(rows, "labels")[0]
        bad = pack_of[labels[begins] != -100]
        refuse(np.bincount(bad, minlength=rows.num_rows) > 0, "the first token of a sample has a label")
        if "input_ids" in rows.column_names:
            wrong = (labels != -100) & (labels != _list(rows, "input_ids")[0])
            refuse(np.bincount(token_pack[wrong], minlength=rows.num_rows) > 0, "a label is not its token")


def _list(rows: pa.Table, name: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    column = rows[name].combine_chunks()
    sizes = np.diff(as_numpy(column.offsets)).astype(np.int64)
    return as_numpy(column.flatten()), sizes
