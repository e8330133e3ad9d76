"""What reading costs: packed batches, torch's mode beside torch, resume, state, order at any position.

    python -m benchmarks.loader [--documents 200000] [--rounds 3] [--workers 0 2] [--json FILE]

Documents are log-normal (median 299 tokens) in an Arrow file and a parquet file that are written here. All
figures are per CPU-second of the whole process tree, workers included, since this is what the training
process loses; ratios are between runs in turns. Peers run where they are installed: torch's own loader with
a flat gather (the least a hand-written data set can do) always, `torchdata` and `datasets` where there.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch.utils.data
from rich.console import Console
from rich.table import Table

from loaders import DataLoader, Mixture, open_source
from loaders.order import permute
from loaders.quota import Quota

BATCH_DOCUMENTS = 512
PACK_TOKENS = 1 << 18


def write_documents(folder: Path, documents: int) -> dict[str, Path]:
    """Arrow and parquet files of the same documents."""
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.lognormal(np.log(299), 1.0, documents).astype(np.int64) + 1, 32_768)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = rng.integers(0, 50_000, offsets[-1], dtype=np.int32)
    column = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens))
    table = pa.table({"input_ids": column})
    paths = {"arrow": folder / "documents.arrow", "parquet": folder / "documents.parquet"}
    with pa.OSFile(str(paths["arrow"]), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=10_000)
    pq.write_table(table, paths["parquet"], row_group_size=10_000)
    return paths


class Flat(torch.utils.data.Dataset[np.ndarray]):
    """A hand-written data set over the memory-mapped token column."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.column: Any = None

    def open(self) -> None:
        if self.column is None:
            column = pa.ipc.open_file(pa.memory_map(str(self.path))).read_all()["input_ids"].combine_chunks()
            self.column = column.values.to_numpy(), column.offsets.to_numpy()

    def __len__(self) -> int:
        self.open()
        return len(self.column[1]) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        self.open()
        tokens, offsets = self.column
        return tokens[offsets[row] : offsets[row + 1]]

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "column": None}


def ours(path: Path, workers: int, documents: int, **more: Any) -> Iterator[int]:
    loader = DataLoader(
        open_source(str(path)),
        batch_size=documents,
        shuffle=True,
        max_tokens=PACK_TOKENS,
        num_workers=workers,
        **more,
    )
    for batch in loader:
        yield batch["input_ids"].shape[1]


def torch_flat(path: Path, workers: int, documents: int) -> Iterator[int]:
    loader = torch.utils.data.DataLoader(
        Flat(path), batch_size=documents, shuffle=True, num_workers=workers, collate_fn=np.concatenate
    )
    for batch in loader:
        yield batch.size


def stateful(path: Path, workers: int, documents: int) -> Iterator[int]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(
        Flat(path), batch_size=documents, shuffle=True, num_workers=workers, collate_fn=np.concatenate
    )
    for batch in loader:
        yield batch.size


def _join_rows(rows: list[dict[str, Any]]) -> np.ndarray:
    return np.concatenate([row["input_ids"] for row in rows])


def hugging_face(path: Path, workers: int, documents: int) -> Iterator[int]:
    import datasets

    rows = datasets.Dataset.from_file(str(path)) if path.suffix == ".stream" else None
    if rows is None:
        rows = datasets.Dataset(pa.ipc.open_file(pa.memory_map(str(path))).read_all())
    loader = torch.utils.data.DataLoader(
        rows.with_format("numpy"),
        batch_size=documents,
        shuffle=True,
        num_workers=workers,
        collate_fn=_join_rows,
    )
    for batch in loader:
        yield batch.size


PEERS: dict[str, Callable[[Path, int, int], Iterator[int]]] = {
    "torch, flat gather": torch_flat,
    "torchdata stateful": stateful,
    "datasets map style": hugging_face,
}


def cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def rate(make: Callable[[], Iterator[int]], limit_s: float) -> dict[str, float]:
    """Tokens and batches per CPU-second, after the first batch."""
    gc.collect()
    batches = make()
    next(batches)
    started, cpu, tokens, count = time.perf_counter(), cpu_s(), 0, 0
    for size in batches:
        tokens, count = tokens + size, count + 1
        if time.perf_counter() - started > limit_s:
            break
    wall = time.perf_counter() - started
    del batches  # ends the workers, whose CPU time counts from then on
    gc.collect()
    used = max(cpu_s() - cpu, 1e-9)
    return {"tokens_per_cpu_s": tokens / used, "tokens_per_s": tokens / wall, "batches": count}


def packed_batches(paths: dict[str, Path], workers: list[int], rounds: int) -> list[dict[str, Any]]:
    """All loaders in turns, some rounds; the median of each."""
    cases: list[tuple[str, str, int, int, Callable[[], Iterator[int]]]] = []
    for number in workers:
        for kind, path in paths.items():
            for documents in (BATCH_DOCUMENTS, 8 * BATCH_DOCUMENTS):
                make = lambda p=path, w=number, d=documents: ours(p, w, d)
                cases.append(("evenload", kind, number, documents, make))
        for name, peer in PEERS.items():
            make = lambda f=peer, w=number: f(paths["arrow"], w, BATCH_DOCUMENTS)
            cases.append((name, "arrow", number, BATCH_DOCUMENTS, make))
    found: dict[int, list[dict[str, float]]] = {}
    for _ in range(rounds):
        for index, case in enumerate(cases):
            try:
                found.setdefault(index, []).append(rate(case[-1], limit_s=6.0))
            except ImportError:
                continue
    return [
        {
            "loader": cases[index][0],
            "format": cases[index][1],
            "workers": cases[index][2],
            "documents_a_step": cases[index][3],
            **{key: statistics.median(row[key] for row in rows) for key in rows[0]},
        }
        for index, rows in found.items()
        if rows
    ]


def unbalanced_over_torch(rounds: int) -> dict[str, Any]:
    """CPU time of our loader without ``max_tokens`` over torch's, small batches, in turns."""
    data = torch.utils.data.TensorDataset(torch.arange(200_000))
    kinds = {"torch": torch.utils.data.DataLoader, "evenload": DataLoader}
    ratios = []
    for _ in range(4 * rounds):
        used = {}
        for name, kind in kinds.items():
            loader = kind(data, batch_size=32, shuffle=True)
            started = time.process_time()
            for _batch in loader:
                pass
            used[name] = time.process_time() - started
        ratios.append(used["evenload"] / used["torch"])
    ratios.sort()
    return {"ratio": statistics.median(ratios), "low": ratios[0], "high": ratios[-1]}


def resume_times(path: Path) -> dict[str, float]:
    """Milliseconds to the first batch behind a loaded state, by its place in the epoch."""
    arguments: dict[str, Any] = {"batch_size": 64, "shuffle": True, "max_tokens": PACK_TOKENS}
    source = open_source(str(path))
    loader = DataLoader(source, **arguments)
    next(iter(loader))
    state = loader.state_dict()
    times = {}
    for part in (0.0, 0.5, 0.99):
        state["position"] = int(part * len(source)) // 64 * 64
        fresh = DataLoader(source, **arguments)
        fresh.load_state_dict(state)
        started = time.perf_counter()
        next(iter(fresh))
        times[f"resume_ms_at_{part:.0%}"] = (time.perf_counter() - started) * 1e3
    times["state_bytes"] = len(pickle.dumps(state))
    return times


def order_times() -> dict[str, float]:
    """Permutation and mixing, per position and at position 10^9."""
    permute([0], 10, 1)
    weights = np.random.default_rng(0).dirichlet(np.ones(100))
    Quota(np.zeros(1), weights[None]).locate(np.arange(2))
    many = np.arange(1_000_000)
    started = time.process_time()
    permute(many, 10**9, 1)
    permuted = time.process_time() - started
    quota = Quota(np.zeros(1), weights[None])
    started = time.process_time()
    quota.locate(many)
    mixed = time.process_time() - started
    far = Quota(np.zeros(1), weights[None])
    started = time.perf_counter()
    far.locate(np.arange(10**9, 10**9 + 512))
    at_billion = time.perf_counter() - started
    error = np.abs(quota.counts(1_000_000) - 1_000_000 * weights).max()
    drawn = np.random.default_rng(1).choice(100, 1_000_000, p=weights)
    drawn_error = np.abs(np.bincount(drawn, minlength=100) - 1_000_000 * weights).max()
    return {
        "permuted_positions_per_cpu_s": 1e6 / permuted,
        "mixed_positions_of_100_sources_per_cpu_s": 1e6 / mixed,
        "512_positions_at_1e9_ms": at_billion * 1e3,
        "largest_error_samples": float(error),
        "largest_error_samples_of_draws": float(drawn_error),
    }


def hundred_sources(folder: Path) -> dict[str, float]:
    """Descriptors and the time to a first batch with many sources."""
    for number in range(100):
        pq.write_table(pa.table({"input_ids": [[number] * 50] * 200}), folder / f"source{number}.parquet")
    started = time.perf_counter()
    mixture = Mixture({f"s{n}": open_source(str(folder / f"source{n}.parquet")) for n in range(100)})
    loader = DataLoader(mixture, batch_size=64, shuffle=True, max_tokens=8192)
    batches = iter(loader)
    next(batches)
    first = time.perf_counter() - started
    for _ in range(100):
        next(batches)
    return {"first_batch_s": first, "descriptors": float(len(os.listdir("/proc/self/fd")))}


def show(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table("loader", "format", "workers", "documents a step", "M tokens / CPU-s", "M tokens / s")
    for row in rows:
        table.add_row(
            row["loader"],
            row["format"],
            str(row["workers"]),
            str(row["documents_a_step"]),
            f"{row['tokens_per_cpu_s'] / 1e6:.1f}",
            f"{row['tokens_per_s'] / 1e6:.1f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = write_documents(folder, options.documents)
        rows = packed_batches(paths, options.workers, options.rounds)
        show(console, rows)
        report = {
            "packed": rows,
            "unbalanced over torch": unbalanced_over_torch(options.rounds),
            "resume": resume_times(paths["arrow"]),
            "order": order_times(),
            "hundred sources": hundred_sources(folder),
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "cores": os.cpu_count(),
        }
    for name, values in report.items():
        if isinstance(values, dict):
            console.print(name, {key: round(value, 3) for key, value in values.items()})
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
