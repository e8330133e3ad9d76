"""What reading costs: packed batches beside other loaders, torch's mode beside torch, planning beside a step.

    python -m benchmarks loader [SECTION ...] [--documents 200000] [--rounds 3] [--seconds 3]
        [--workers 0 2] [--python NAME=PATH ...]

Sections: ``peers``, ``shares``, ``unbalanced``, ``state``; all of them without a choice. Each writes
``results/loader_SECTION.csv``; ``peers`` also draws a figure.

Documents are log-normal (median 299 tokens, 98.6 million tokens in all). Every loader of ``peers`` runs in
a process of its own, in turns, after its own format was written from them; figures are per CPU-second of
its whole process tree, workers included, since this is what the training process loses. A batch has 512
documents, shuffled. ``evenload`` and ``torch_packed`` lay out token ids, labels, positions, document numbers
and borders; all others only put the tokens end to end, which is less work. ``gather`` does so with the rows
known before: no loader that uses numpy can be faster. Peers come with
``pip install -c constraints.txt ".[bench]"``. Not all of them fit into one environment:
``--python megatron-energon=/path/to/python`` (or ``EVENLOAD_PEERS``) runs one from another. One that is
missing or does not run is named in the rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch.utils.data

from balancer import CostModel, Planner, Topology
from benchmarks import harness
from benchmarks.peers import documents as data
from benchmarks.peers.__main__ import PEERS
from benchmarks.peers.ours import PACK_TOKENS
from loaders import DataLoader, Mixture, open_source
from loaders.order.permutation import permute
from loaders.order.quota import Quota
from loaders.sources.base import Source
from packing.table import SampleTable

ROOT = Path(__file__).parents[1]
BATCH_DOCUMENTS = 512
LIMIT_S = 600.0
"""A peer that takes longer to write its format, or to read for some seconds, is named as missing."""
SECTIONS = ("peers", "shares", "unbalanced", "state")


def write_documents(folder: Path, documents: int) -> dict[str, Path]:
    """Arrow and parquet files of the same documents."""
    paths = {"arrow": data.write(folder, documents), "parquet": folder / "documents.parquet"}
    table = pa.ipc.open_file(pa.memory_map(str(paths["arrow"]))).read_all()
    pq.write_table(table, paths["parquet"], row_group_size=10_000)
    return paths


# peers -----------------------------------------------------------------------------------------


def ask(name: str, pythons: Mapping[str, str], arguments: Iterable[str]) -> dict[str, Any]:
    """The answer of one loader in a process of its own."""
    command = [pythons.get(name, pythons.get("", sys.executable)), "-m", "benchmarks.peers", name, *arguments]
    if name in ("evenload", "gather"):
        command[0] = sys.executable
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"missing": f"no answer within {LIMIT_S:.0f} s"}
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not answers:
        return {"missing": (done.stderr.strip().splitlines() or ["no answer"])[-1]}
    found: dict[str, Any] = json.loads(answers[-1])
    return found


def peers(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All loaders in turns, some rounds: the median of each, and how much more CPU it takes than ours."""
    pythons = dict(pair.split("=", 1) if "=" in pair else ("", pair) for pair in options.python)
    missing: dict[str, str] = {}
    versions: dict[str, str] = {}
    for name in PEERS:
        answer = ask(name, pythons, ["--data", str(folder), "--prepare"])
        versions[name] = answer.get("version", "")
        if "missing" in answer:
            missing[name] = answer["missing"]
            print(f"{name} is left out: {answer['missing']}", file=sys.stderr)
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for _ in range(options.rounds):
        for workers in options.workers:
            for name in PEERS:
                if name in missing or (workers and not PEERS[name].can_work):
                    continue
                arguments = [
                    "--data",
                    str(folder),
                    "--workers",
                    str(workers),
                    "--seconds",
                    str(options.seconds),
                ]
                answer = ask(name, pythons, [*arguments, "--documents", str(options.batch)])
                if "missing" in answer:
                    missing[name] = f"{workers} workers: {answer['missing']}"
                    print(f"{name} is left out: {missing[name]}", file=sys.stderr)
                else:
                    found.setdefault((name, workers), []).append(answer)
    rows = []
    for (name, workers), answers in sorted(found.items(), key=lambda item: (item[0][1], item[0][0])):
        ours = found.get(("evenload", workers), [])
        ratios = [
            mine["tokens_per_cpu_s"] / theirs["tokens_per_cpu_s"]
            for mine, theirs in zip(ours, answers, strict=False)
        ]
        middle = {
            key: statistics.median(row[key] for row in answers) for key in answers[0] if key != "version"
        }
        rows.append(
            {
                "loader": name,
                "version": versions[name],
                "workers": workers,
                "documents_a_batch": options.batch,
                "thousand_documents_per_cpu_s": middle["documents_per_cpu_s"] / 1e3,
                "million_tokens_per_cpu_s": middle["tokens_per_cpu_s"] / 1e6,
                "thousand_documents_per_s": middle["documents_per_s"] / 1e3,
                "first_batch_s": middle["first_batch_s"],
                "times_our_cpu_a_token": statistics.median(ratios) if ratios else 0.0,
                "missing": "",
            }
        )
    blank = dict.fromkeys(rows[0] if rows else ["loader", "missing"], "")
    rows += [
        {**blank, "loader": name, "version": versions[name], "missing": why} for name, why in missing.items()
    ]
    return rows


def draw_peers() -> None:
    """Tokens a CPU-second of every loader, without workers and with."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in harness.read("loader_peers") if not row["missing"]]
    names = sorted(
        {row["loader"] for row in rows},
        key=lambda name: max(float(r["million_tokens_per_cpu_s"]) for r in rows if r["loader"] == name),
    )
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    counts = sorted({int(row["workers"]) for row in rows})
    height = 0.8 / len(counts)
    for k, workers in enumerate(counts):
        mine = {
            r["loader"]: float(r["million_tokens_per_cpu_s"]) for r in rows if int(r["workers"]) == workers
        }
        place = [at - height * (k - (len(counts) - 1) / 2) for at, name in enumerate(names) if name in mine]
        axes.barh(place, [mine[name] for name in names if name in mine], height, label=f"{workers} workers")
    axes.set_xscale("log")
    axes.set_xlabel("million tokens / CPU second of all processes")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_title(
        "512 shuffled documents a batch; evenload and torch_packed lay out labels and borders", fontsize=9
    )
    axes.legend(fontsize=8)
    harness.FIGURES.mkdir(exist_ok=True, parents=True)
    figure.savefig(harness.FIGURES / "loader_peers.png", dpi=110)


# planning beside reading -----------------------------------------------------------------------


def shares(folder: Path) -> list[dict[str, Any]]:
    """CPU time of planning a step and of reading it, for some sizes of the step, one rank and eight."""
    source = open_source(str(folder / data.FILE))
    lengths = source.lengths()
    sizes = ((1, 512), (1, 4096), (1, 32_768), (8, 512))
    return [share(source, lengths, ranks, documents) for ranks, documents in sizes]


def share(source: Source, lengths: np.ndarray, ranks: int, documents: int) -> dict[str, Any]:
    """The same for one size: planning alone over whole steps of one rank, planning included."""
    size = ranks * documents
    rng = np.random.default_rng(0)
    tables = [
        SampleTable.from_lengths(lengths[rng.integers(0, lengths.size, size)])
        for _ in range(max(4, 20_000 // documents))
    ]
    topology = Topology(ranks)
    planner = Planner(topology=topology, max_tokens=PACK_TOKENS, cost=CostModel.generic())

    def plan() -> None:
        for table in tables:
            planner(table)

    loader = DataLoader(
        source, batch_size=documents, shuffle=True, max_tokens=PACK_TOKENS, topology=topology, rank=0
    )
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def read() -> None:
        steps = 0
        while steps < len(tables):
            steps += next(batches).last_in_step

    ratio = harness.paired(read, plan, rounds=7)
    return {
        "ranks": ranks,
        "documents_a_rank": documents,
        "plan_ms": ratio.b_s * 1e3 / len(tables),
        "step_ms": ratio.a_s * 1e3 / len(tables),
        "plan_share_of_step": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
    }


# torch's mode, states, orders ------------------------------------------------------------------


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


def unbalanced() -> list[dict[str, Any]]:
    """An epoch of small batches without ``max_tokens``, CPU time over that of torch's own loader."""
    rows_of = torch.utils.data.TensorDataset(torch.arange(200_000))

    def epoch(kind: Any) -> None:
        for _ in kind(rows_of, batch_size=32, shuffle=True):
            pass

    ratio = harness.paired(lambda: epoch(torch.utils.data.DataLoader), lambda: epoch(DataLoader), rounds=11)
    return [
        {
            "torch_s": ratio.a_s,
            "evenload_s": ratio.b_s,
            "ratio": ratio.median,
            "low": ratio.low,
            "high": ratio.high,
        }
    ]


def state(folder: Path) -> list[dict[str, Any]]:
    """Resuming, orders, many sources: one row each."""
    found = {**resume_times(folder / data.FILE), **order_times(), **hundred_sources(folder)}
    return [{"what": name, "value": value} for name, value in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", help=f"some of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--documents", type=int, default=200_000, help="documents of the data")
    parser.add_argument("--batch", type=int, default=BATCH_DOCUMENTS, help="documents of a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="measured in each run, after one to warm up"
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument(
        "--python",
        action="append",
        default=os.environ.get("EVENLOAD_PEERS", "").split(),
        metavar="[NAME=]PATH",
        help="interpreter of a peer, or of all; also from EVENLOAD_PEERS, with blanks between",
    )
    options = parser.parse_args()
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"no section {min(unknown)!r} among {', '.join(SECTIONS)}")
    sections = options.sections or SECTIONS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data.write(folder, options.documents)
        if "shares" in sections:
            harness.publish("loader_shares", shares(folder))
        if "unbalanced" in sections:
            harness.publish("loader_unbalanced", unbalanced())
        if "state" in sections:
            harness.publish("loader_state", state(folder))
        if "peers" in sections:
            harness.publish("loader_peers", peers(folder, options))
            draw_peers()


if __name__ == "__main__":
    main()
