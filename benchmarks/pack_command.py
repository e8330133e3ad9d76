"""What ``evenload pack`` costs: speed beside a plain pyarrow copy, peak memory, and time to the first sign.

    python -m benchmarks.pack_command [--tokens 50000000] [--workers 2] [--json result.json]

The copy reads the token column and writes the columns that ``evenload pack`` writes, with the same
compression, packs being runs of rows as they come: no lengths, no plan, no check. It is one process, with
pyarrow's threads. Runs alternate, and ratios are of pairs. Memory is the proportional set size (PSS) of all
processes, every 20 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CAP = 8192
ROW_GROUP = 1000


def write_corpus(path: Path, tokens: int, seed: int) -> None:
    """Log-normal lengths, median 400, and ids by Zipf's law, as parquet with zstd."""
    rng = np.random.default_rng(seed)
    pool = (rng.zipf(1.15, 4_000_000) % 50_000).astype(np.int32)
    writer, left = None, tokens
    while left > 0:
        lengths = np.clip(rng.lognormal(6.0, 1.0, ROW_GROUP), 1, CAP).astype(np.int64)
        total = int(lengths.sum())
        begin = int(rng.integers(0, pool.size - total))
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
        rows = pa.table(
            {"input_ids": pa.ListArray.from_arrays(offsets, pa.array(pool[begin : begin + total]))}
        )
        writer = writer or pq.ParquetWriter(path, rows.schema, compression="zstd")
        writer.write_table(rows)
        left -= total
    assert writer is not None
    writer.close()


COPY = """
import sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
source, target, cap, split = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "split"
writer = None
row = 0
file = pq.ParquetFile(source)
for batch in range(file.num_row_groups):
    column = file.read_row_group(batch, columns=["input_ids"])["input_ids"].combine_chunks()
    ids = np.asarray(column.values)
    offsets = np.asarray(column.offsets).astype(np.int64)
    lengths = np.diff(offsets)
    packs = np.append(np.flatnonzero(np.diff(offsets[:-1] // cap, prepend=-1)), lengths.size)
    positions = (np.arange(ids.size) - np.repeat(offsets[:-1], lengths)).astype(np.int32)
    labels = ids.copy()
    labels[offsets[:-1]] = -100
    bounds = pa.array(offsets[packs].astype(np.int32))
    by_token = lambda values: pa.ListArray.from_arrays(bounds, pa.array(values))
    by_sample = lambda values: pa.ListArray.from_arrays(pa.array(packs.astype(np.int32)), pa.array(values))
    rows = pa.table({
        "input_ids": by_token(ids), "position_ids": by_token(positions), "labels": by_token(labels),
        "seq_lengths": by_sample(lengths.astype(np.int32)),
        "source_ids": by_sample(np.zeros(lengths.size, np.int32)),
        "row_ids": by_sample(np.arange(row, row + lengths.size)),
        "row_starts": by_sample(np.zeros(lengths.size, np.int32)),
    })
    row += lengths.size
    if writer is None:
        options = {}
        if split:
            big = ("input_ids", "position_ids", "labels")
            options = {
                "use_dictionary": [name + ".list.element" for name in rows.column_names if name not in big],
                "column_encoding": {name + ".list.element": "BYTE_STREAM_SPLIT" for name in big},
                "write_statistics": False,
            }
        writer = pq.ParquetWriter(target, rows.schema, compression="zstd", compression_level=1, **options)
    writer.write_table(rows)
writer.close()
"""


class Watch:
    """Runs a command; seconds, CPU seconds of it and its children, and the peak of their memory."""

    def __init__(self, command: list[str]) -> None:
        begin = time.perf_counter()
        used = os.times()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.peak_mib = 0.0
        sampler = threading.Thread(target=self._sample)
        sampler.start()
        code = self.process.wait()
        self.wall_s = time.perf_counter() - begin
        sampler.join()
        after = os.times()
        self.cpu_s = after.children_user + after.children_system - used.children_user - used.children_system
        if code:
            raise SystemExit(f"{' '.join(command)} ended with {code}")

    def _sample(self) -> None:
        while self.process.poll() is None:
            total = sum(_pss(pid) for pid in _tree(self.process.pid))
            self.peak_mib = max(self.peak_mib, total / 1024)
            time.sleep(0.02)


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in children for one in _tree(int(child)))]


def _pss(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def pack_command(inputs: list[str], output: Path, workers: int) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "loaders.cli",
        "pack",
        *inputs,
        "-o",
        str(output),
        "--max-tokens",
        str(CAP),
    ]
    return [*command, "--workers", str(workers), "--overwrite"]


def compare(source: Path, folder: Path, workers: int, rounds: int) -> dict[str, Any]:
    """Pack and copy in turn."""
    runs: dict[str, list[Watch]] = {"pack": [], "copy, same encodings": [], "copy, default encodings": []}
    for _ in range(rounds):
        runs["pack"].append(Watch(pack_command([str(source)], folder / "out", workers)))
        for name, encoding in (("copy, same encodings", "split"), ("copy, default encodings", "default")):
            command = [
                sys.executable,
                "-c",
                COPY,
                str(source),
                str(folder / "copy.parquet"),
                str(CAP),
                encoding,
            ]
            runs[name].append(Watch(command))
    packed = runs["pack"]
    result: dict[str, Any] = {}
    for name, found in runs.items():
        result[name] = {
            "wall_s": statistics.median(run.wall_s for run in found),
            "cpu_s": statistics.median(run.cpu_s for run in found),
            "peak_mib": max(run.peak_mib for run in found),
            "speed_of_pack_over_it": statistics.median(
                run.wall_s / own.wall_s for run, own in zip(found, packed, strict=True)
            ),
        }
    return result


def memory(source: Path, folder: Path, workers: int) -> dict[str, float]:
    """Peak over one and over ten times the corpus."""
    copies = folder / "ten"
    copies.mkdir()
    for number in range(10):
        (copies / f"{number}.parquet").symlink_to(source)
    one = Watch(pack_command([str(source)], folder / "out", workers))
    ten = Watch(pack_command([str(copies)], folder / "out", workers))
    return {"1x_mib": one.peak_mib, "10x_mib": ten.peak_mib, "1x_s": one.wall_s, "10x_s": ten.wall_s}


def first_signs(source: Path, folder: Path) -> dict[str, float]:
    """Seconds until ``--help`` is done, and until a run first says what it does."""
    helps = [Watch([sys.executable, "-m", "loaders.cli", "--help"]).wall_s for _ in range(5)]
    begin = time.perf_counter()
    process = subprocess.Popen(
        pack_command([str(source)], folder / "out", 1), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert process.stderr is not None
    process.stderr.read(1)
    first = time.perf_counter() - begin
    process.stderr.read()
    process.wait()
    return {"help_s": min(helps), "first_progress_s": first}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=50_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="evenload-bench-"))
    try:
        source = folder / "corpus.parquet"
        write_corpus(source, arguments.tokens, 0)
        result = {
            "tokens": arguments.tokens,
            "workers": arguments.workers,
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "pyarrow": pa.__version__,
            "signs": first_signs(source, folder),
            "speed": compare(source, folder, arguments.workers, arguments.rounds),
            "memory": memory(source, folder, arguments.workers),
        }
    finally:
        shutil.rmtree(folder)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
