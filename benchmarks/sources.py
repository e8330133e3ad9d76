"""What many sources and many samples cost: memory, descriptors, time to a first batch, resume.

    python -m benchmarks.sources [--sources 1 10 100 1000] [--samples 1000000 10000000] [--files 1000]
                                 [--parts many samples] [--plot-only]

The corpora are written to a temporary folder that goes at the end: sources of 2,000 samples each, and files
that hold up to ten million samples of a few tokens, as Arrow (memory-mapped) and parquet (decoded). Each case
runs in a process of its own. Times are given on the clock and as seconds of all threads, which others that
use the machine disturb less. Memory is what a process holds alone and its share of what it holds with others,
without pages of files, which the kernel may drop.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import FIGURES, publish, read

SAMPLES_A_SOURCE = 2_000
TOKENS = 16
"""Of a sample on average: few, since what is measured grows with samples and not with tokens."""
STEPS = 100
KINDS = ("arrow", "parquet")
RUNS = (
    ("cold", 0, 0.0),
    ("warm", 0, 0.0),
    ("warm", 0, 0.5),
    ("warm", 0, 0.99),
    ("warm", 1, 0.0),
    ("warm", 2, 0.0),
)
"""Cache, workers and place in the epoch."""


# ------------------------------------------------------------------------------------------------- corpora


def rows_of(count: int, seed: int) -> pa.Table:
    """Samples of 1 to 31 random tokens."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 2 * TOKENS, count))]).astype(np.int32)
    tokens = rng.integers(0, 50_000, offsets[-1], dtype=np.uint16)
    return pa.table({"input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))})


def write_files(folder: Path, kind: str, files: int, samples: int) -> None:
    """``samples`` samples in all, in files of equal size."""
    folder.mkdir(parents=True)
    for number in range(files):
        table = rows_of(samples // files, number)
        path = folder / f"{number:05}.{kind}"
        if kind == "parquet":
            pq.write_table(table, path, compression="none", use_dictionary=False)
        else:
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table)


# ------------------------------------------------------------------------------------ one case, one process


def pss_mib(process: int | str = "self") -> float:
    """Proportional set size of a process, without pages of files, which the kernel may drop."""
    with open(f"/proc/{process}/smaps_rollup") as file:
        fields = dict(line.split(":", 1) for line in file if ":" in line)
    kib = int(fields["Pss_Anon"].split()[0]) + int(fields["Pss_Shmem"].split()[0])
    return kib / 1024


def children() -> list[int]:
    return [int(one) for one in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def mixture_case(folder: str, count: int) -> dict[str, Any]:
    """A mixture of ``count`` sources: first batch, memory and descriptors after some steps."""
    from loaders import DataLoader, Mixture, open_source

    warm_up(Path(folder))
    before = pss_mib()
    started, cpu = time.perf_counter(), time.process_time()
    paths = sorted(Path(folder).iterdir())[:count]
    mixture = Mixture({path.stem: open_source(path, cache=False) for path in paths})
    loader = DataLoader(mixture, batch_size=512, shuffle=True, max_tokens=1 << 15)
    batches = iter(loader)
    next(batches)
    first, first_cpu = time.perf_counter() - started, time.process_time() - cpu
    opened = pss_mib()
    steps = drawn(batches, loader, STEPS)
    return {
        "first_batch_s": first,
        "first_batch_cpu_s": first_cpu,
        "opened_mib": opened - before,
        "read_mib": pss_mib() - before,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "steps": steps,
    }


def corpus_case(folder: str, kind: str, workers: int, cache: str | None, position: float) -> dict[str, Any]:
    """One source of many files: time to the first batch from a position, and memory of workers."""
    from loaders import DataLoader, open_source

    warm_up(Path(folder))
    before = pss_mib()
    started, cpu = time.perf_counter(), time.process_time()
    source = open_source(f"{folder}/*.{kind}", cache=cache or False)
    loader = DataLoader(source, batch_size=512, shuffle=True, max_tokens=1 << 15, num_workers=workers)
    opened = time.perf_counter() - started
    size = loader.metrics()["kept"]
    state = loader.state_dict()
    state["position"] = int(size * position) // 512 * 512
    loader.load_state_dict(state)
    begun = time.perf_counter()
    batches = iter(loader)
    next(batches)
    now, first_cpu = time.perf_counter(), time.process_time() - cpu
    steps = drawn(batches, loader, STEPS)
    of_workers = [pss_mib(child) for child in children()]
    return {
        "samples": size,
        "first_batch_s": now - started,
        "first_batch_cpu_s": first_cpu,
        "open_s": opened,
        "resume_s": now - begun,
        "main_mib": pss_mib() - before,
        "worker_mib": max(of_workers, default=0.0),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "shuffle_radius": next(iter(loader.metrics()["shuffle_radius"].values()), size),
        "steps": steps,
    }


def drawn(batches: Iterator[Any], loader: Any, steps: int) -> int:
    """Go on for some steps."""
    for batch in batches:
        if batch.last_in_step and loader.metrics()["steps"] >= steps:
            break
    return int(loader.metrics()["steps"])


def warm_up(folder: Path) -> None:
    """Load the libraries and the kernels, which are no part of what is measured."""
    from loaders import DataLoader, Mixture, open_source

    path = sorted(folder.iterdir())[0]
    mixture = Mixture({"a": open_source(path, cache=False), "b": open_source(path, cache=False)})
    for data in (mixture, open_source(path, cache=False)):
        next(iter(DataLoader(data, batch_size=8, shuffle=True, max_tokens=1 << 15)))


CASES: dict[str, Callable[..., dict[str, Any]]] = {"mixture": mixture_case, "corpus": corpus_case}


def in_a_process(case: str, **arguments: Any) -> dict[str, Any]:
    """Run a case alone."""
    command = [sys.executable, "-m", "benchmarks.sources", "--case", case, json.dumps(arguments)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    print(case, arguments, found, file=sys.stderr, flush=True)
    return found


# ------------------------------------------------------------------------------------------------- all cases


def many_sources(folder: Path, counts: list[int]) -> list[dict[str, Any]]:
    """Mixtures of more and more sources."""
    rows = []
    for kind in KINDS:
        where = folder / f"sources-{kind}"
        write_files(where, kind, max(counts), max(counts) * SAMPLES_A_SOURCE)
        fewest: dict[str, Any] = {}
        for count in counts:
            found = in_a_process("mixture", folder=str(where), count=count)
            fewest = fewest or {"sources": count, **found}
            more = max(count - fewest["sources"], 1)
            rows.append(
                {
                    "format": kind,
                    "sources": count,
                    **found,
                    "mib_a_source": (found["read_mib"] - fewest["read_mib"]) / more,
                }
            )
    return rows


def many_samples(folder: Path, counts: list[int], files: int) -> list[dict[str, Any]]:
    """One source of more and more samples: cold, then from the cache, with workers, at three positions."""
    rows = []
    for kind, count in itertools.product(KINDS, counts):
        where = folder / f"samples-{kind}-{count}"
        write_files(where, kind, files, count)
        in_a_process(  # fills the cache
            "corpus", folder=str(where), kind=kind, cache=str(folder / "cache"), workers=0, position=0.0
        )
        for cached, workers, position in RUNS:
            case = {"workers": workers, "position": position}
            cache = str(folder / "cache") if cached == "warm" else None
            found = in_a_process("corpus", folder=str(where), kind=kind, cache=cache, **case)
            rows.append({"format": kind, "files": files, "cache": cached, **case, **found})
    return rows


def plot() -> None:
    """Memory by the number of sources; memory of a worker by that of samples; first batches by position."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    many, samples = read("sources_many"), read("sources_samples")
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for kind in KINDS:
        mine = [row for row in many if row["format"] == kind]
        axes[0].plot(
            [int(row["sources"]) for row in mine], [float(row["read_mib"]) for row in mine], "o-", label=kind
        )
        workers = [row for row in samples if row["format"] == kind and row["workers"] == "2"]
        axes[1].plot(
            [int(row["samples"]) for row in workers],
            [float(row["worker_mib"]) for row in workers],
            "o-",
            label=kind,
        )
        largest = max(int(row["samples"]) for row in samples)
        resumed = [
            row
            for row in samples
            if (row["format"], row["cache"], row["workers"]) == (kind, "warm", "0")
            and int(row["samples"]) == largest
        ]
        axes[2].plot(
            [100 * float(row["position"]) for row in resumed],
            [float(row["first_batch_cpu_s"]) for row in resumed],
            "o-",
            label=kind,
        )
    axes[0].set(xscale="log", xlabel="sources", ylabel="MiB, after 100 steps", ylim=(0, None))
    axes[1].set(xscale="log", xlabel="samples, in 1,000 files", ylabel="MiB a worker", ylim=(0, None))
    axes[2].set(
        xlabel=f"resumed at % of {largest:,} samples", ylabel="CPU s to the first batch", ylim=(0, None)
    )
    axes[0].legend()
    figure.savefig(FIGURES / "sources.png", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--samples", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--parts", nargs="+", choices=("many", "samples"), default=("many", "samples"))
    parser.add_argument("--plot-only", action="store_true")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(CASES[options.case[0]](**json.loads(options.case[1]))))
        return
    if options.plot_only:
        plot()
        return
    with tempfile.TemporaryDirectory() as name:
        if "many" in options.parts:
            publish("sources_many", many_sources(Path(name), options.sources))
        if "samples" in options.parts:
            publish("sources_samples", many_samples(Path(name), options.samples, options.files))
    plot()


if __name__ == "__main__":
    main()
