"""Memory of the data plane: every rank's workers with all files open, or actors that all ranks share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks._processes import descendants, own_process, pss_bytes
from benchmarks._ray_rank import WORKERS

SOURCES = 100
ROWS, TOKENS = 2000, 1024
"""Of a source: 8 MB of token ids in one row group, which is little for a parquet file."""
STEPS = 60
"""Files are opened in the first few, which makes readers seem too slow; surplus ones are ended after 10 s."""
CPUS = 2


def write_sources(folder: Path) -> None:
    """As many files; equal content is as good as any."""
    tokens = np.random.default_rng(0).integers(0, 50_000, ROWS * TOKENS, dtype=np.int32)
    offsets = np.arange(0, ROWS * TOKENS + 1, TOKENS, dtype=np.int32)
    column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))
    first = folder / "source-000.parquet"
    pq.write_table(pa.table({"input_ids": column}), first, row_group_size=ROWS, use_dictionary=False)
    for number in range(1, SOURCES):
        shutil.copy(first, folder / f"source-{number:03d}.parquet")


def memory_rows() -> list[dict[str, Any]]:
    """PSS of workers or actors, of Ray's own processes, and what the ranks themselves grew by."""
    with tempfile.TemporaryDirectory() as place:
        write_sources(Path(place))
        return [
            {"loader": kind, "ranks": ranks, "sources": SOURCES, **measured(kind, place, ranks)}
            for ranks in (1, 2, 4)
            for kind in ("torch", "local", "ray")
        ]


def measured(kind: str, folder: str, ranks: int) -> dict[str, Any]:
    """One job."""
    if kind != "ray":
        with running(kind, folder, ranks, None) as (processes, grown):
            workers = [child for process in processes for child in descendants(process)]
            assert len(workers) >= WORKERS * ranks
            plane = sum(map(pss_bytes, workers))
            return _row(len(workers), plane, 0, grown())
    import ray
    from ray.util import list_named_actors

    from loaders.ray_engine.session import NAMESPACE

    ray.init("local", num_cpus=CPUS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        address = ray.get_runtime_context().gcs_address
        with running(kind, folder, ranks, address) as (_, grown):
            named = [one["name"] for one in list_named_actors(all_namespaces=True)]
            handles = [ray.get_actor(name, namespace=NAMESPACE) for name in named]
            actors = set(ray.get([handle.__ray_call__.remote(own_process) for handle in handles]))
            others = set(descendants(os.getpid())) - actors - set(_STARTED)
            plane, rest = (sum(map(pss_bytes, some)) for some in (actors, others))
            return _row(len(actors), plane, rest, grown())
    finally:
        ray.shutdown()


def _row(processes: int, plane: int, rays_own: int, grown: int) -> dict[str, Any]:
    return {
        "processes": processes,
        "workers_or_actors_MB": plane / 1e6,
        "rays_own_MB": rays_own / 1e6,
        "in_ranks_MB": grown / 1e6,
        "total_MB": (plane + rays_own + grown) / 1e6,
    }


_STARTED: list[int] = []


@contextmanager
def running(kind: str, folder: str, ranks: int, address: str | None) -> Iterator[Any]:
    """Rank processes after their steps; and a function that tells how much memory they grew by."""
    environment = {
        **os.environ, "TORCHELASTIC_RUN_ID": "memory", "MASTER_ADDR": "localhost", "MASTER_PORT": "29555",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks._ray_rank", kind, folder, str(rank), str(ranks), str(STEPS)]
            + ([address] if address else []),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    _STARTED[:] = [process.pid for process in started]
    try:
        before = sum(json.loads(_line(process))["before"] for process in started)
        for process in started:
            assert json.loads(_line(process))["steps"] == STEPS
        yield _STARTED, lambda: sum(map(pss_bytes, _STARTED)) - before
    finally:
        for process in started:
            process.communicate(timeout=120)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a rank ended with status {process.wait()}")
    return line
