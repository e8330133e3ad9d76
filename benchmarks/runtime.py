"""What sharing attention between two ranks costs beside an ideal split, on the CPU.

    python -m benchmarks runtime [--tokens 8192 16384] [--repeats 5]

The ideal is half the time of one process that attends to the whole micro-batch, plus the time to move the
method's bytes with nothing else going on. Both are measured here, on the same two processes, in turns with
the methods, since a core's own speed drifts by a third between minutes. One thread a rank.

    ratio = forward + backward time of the method / (half the whole time + transfer time)

in wall time, and in CPU time of the busier rank, which other work on the machine disturbs less. Rows go to
``benchmarks/results/runtime.csv``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table

from balancer import Topology, runtime
from balancer.sharding import shard
from benchmarks.harness import publish

HEADS, KEY_HEADS, HEAD_SIZE = 8, 2, 64
METHODS = ("all_gather", "ring", "ulysses")
ENDS = {"least": min, "most": max}


class Share:
    """What `runtime.attention` asks of a batch."""

    step, slot, last_in_step, num_loss_tokens, step_loss_tokens = 0, 0, True, 0, 0

    def __init__(self, lengths: np.ndarray, degree: int, cp_rank: int, group: object) -> None:
        self.seq_lengths, self.cp_degree, self.cp_rank, self.cp_group = lengths, degree, cp_rank, group
        self.num_ranks = degree


def packs(tokens: int) -> dict[str, np.ndarray]:
    """One sample, and log-normal documents, of ``tokens`` together."""
    random = np.random.default_rng(0)
    drawn = np.minimum(random.lognormal(7.0, 1.0, 1000).astype(int) + 16, tokens)
    ends = np.minimum(np.cumsum(drawn), tokens)
    documents = np.diff(ends, prepend=0)
    return {"one sample": np.array([tokens]), "documents": documents[documents > 0]}


def inputs(rows: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    shapes = [(rows, h, HEAD_SIZE) for h in (HEADS, KEY_HEADS, KEY_HEADS)]
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]


Seconds = tuple[float, float]
"""Wall and CPU."""


def clock() -> Seconds:
    return time.perf_counter(), time.process_time()


def since(begin: Seconds) -> Seconds:
    """The larger of both ranks' times."""
    now = clock()
    both = torch.tensor([now[0] - begin[0], now[1] - begin[1]], dtype=torch.float64)
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return float(both[0]), float(both[1])


def time_attention(batch: Share, rows: int, method: str) -> Seconds:
    """Forward and backward, all ranks starting together."""
    q, k, v = inputs(rows)
    weight = torch.ones(rows, HEADS, HEAD_SIZE)
    dist.barrier()
    begin = clock()
    runtime.attention(q, k, v, batch, method).backward(weight)
    return since(begin)


def time_transfer(rows: int, method: str, peers: runtime.peers.Peers) -> Seconds:
    """The method's messages alone, forward and backward."""
    size = peers.size
    kv = torch.zeros(rows, 2, KEY_HEADS, HEAD_SIZE)
    dist.barrier()
    begin = clock()
    if method == "all_gather":
        peers.reduce_scatter(peers.all_gather(kv))
    elif method == "ring":
        for messages in (size - 1, size - 1, size):
            for _ in range(messages):
                peers.shift(kv, torch.empty_like(kv)).wait()
    else:
        heads = (HEADS + 2 * KEY_HEADS) // size
        for count in (heads, HEADS // size, HEADS // size, heads):
            peers.all_to_all(torch.zeros(size, rows, count, HEAD_SIZE))
    return since(begin)


def summary(
    tokens: int, pack: str, samples: int, method: str, taken: list[tuple[Seconds, Seconds, Seconds]]
) -> dict[str, object]:
    row: dict[str, object] = {"tokens": tokens, "pack": pack, "samples": samples, "method": method}
    for clock_number, name in enumerate(("wall", "cpu")):
        ratios = [m[clock_number] / (w[clock_number] / 2 + t[clock_number]) for w, t, m in taken]
        for key, column in (("whole", 0), ("transfer", 1), ("method", 2)):
            row[f"{key}_{name}_s"] = statistics.median(times[column][clock_number] for times in taken)
        row |= {f"ratio_{name}": statistics.median(ratios), f"ratios_{name}": ratios}
    return row


def measure(rank: int, store: str, sizes: list[int], repeats: int, results: object) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    group = runtime.ContextGroups(Topology(ranks=2)).get(0, 2)
    peers = runtime.peers.Peers(group)
    rows_out = []
    for tokens in sizes:
        for name, lengths in packs(tokens).items():
            whole, share = Share(lengths, 1, 0, None), Share(lengths, 2, rank, group)
            rows = shard(lengths, 2, rank).index.size
            taken: dict[str, list[tuple[Seconds, Seconds, Seconds]]] = {method: [] for method in METHODS}
            for repeat in range(repeats + 1):
                whole_s = time_attention(whole, tokens, "auto")
                for method in METHODS:
                    transfer_s = time_transfer(rows, method, peers)
                    method_s = time_attention(share, rows, method)
                    if repeat:  # the first one warms up
                        taken[method].append((whole_s, transfer_s, method_s))
            rows_out += [summary(tokens, name, len(lengths), method, taken[method]) for method in METHODS]
    if rank == 0:
        results.put(rows_out)  # type: ignore[attr-defined]
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 16384])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        job = (f"{folder}/store", args.tokens, args.repeats, results)
        running = mp.start_processes(measure, job, nprocs=2, join=False, start_method="spawn")
        rows = results.get()
        while not running.join():
            pass
    table = Table(title=f"degree 2 on 2 CPU ranks, {HEADS} heads, {KEY_HEADS} key heads, {HEAD_SIZE} wide")
    for column in ("tokens", "pack", "method", "alone s", "method s", "/ ideal", "range", "/ ideal, CPU"):
        table.add_column(column, justify="right")
    for row in rows:
        times = f"{row['whole_wall_s']:.3f}", f"{row['method_wall_s']:.3f}", f"{row['ratio_wall']:.2f}"
        spread = f"{min(row['ratios_wall']):.2f}..{max(row['ratios_wall']):.2f}"
        table.add_row(
            f"{row['tokens']:,}", row["pack"], row["method"], *times, spread, f"{row['ratio_cpu']:.2f}"
        )
    Console(width=110).print(table)
    publish("runtime", [{**_flat(row), "repeats": args.repeats, "torch": torch.__version__} for row in rows])


def _flat(row: dict[str, Any]) -> dict[str, object]:
    """A row with the ends of its ratios instead of all of them."""
    ends = {
        f"{key}_{name}": of(row[key]) for key in ("ratios_wall", "ratios_cpu") for name, of in ENDS.items()
    }
    return {key: value for key, value in row.items() if not isinstance(value, list)} | ends


if __name__ == "__main__":
    main()
