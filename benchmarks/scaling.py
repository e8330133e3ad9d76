"""How cost grows with the work: CPU seconds at growing sizes, and the exponent that fits them.

    python -m benchmarks scaling

An exponent of 1 is linear, 0 constant. It is the slope of a line through log(size) and log(seconds), over the
upper half of the sizes, where constants count least. Rows go to ``benchmarks/results/scaling.csv``, the fits
to ``scaling_exponents.csv``, all curves into one figure.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from balancer import CostModel, Topology, partition, plan_step, simulate
from benchmarks.harness import FIGURES, publish
from benchmarks.workloads import MIXES, clipped
from loaders.order.permutation import permute
from packing import StreamPacker, pack

COST = CostModel.preset("flexsp-a100-7b")
SAMPLES_A_RANK = 64
REPEATS = 5

Run = Callable[[], Any]


def lengths(n: int, longest: int = 65_536) -> np.ndarray:
    return clipped(MIXES["prolong"](n, 0), longest).astype(np.int64)


def packing(n: int) -> Run:
    """Lengths to pack ids, best fit."""
    given = lengths(n, 8192)
    return lambda: pack(given, 8192).assignment()


def stream(n: int) -> Run:
    """Lengths to packs as they come, 256 open."""
    given = lengths(n, 8192)
    return lambda: StreamPacker(8192).add(given)


def planning(n: int, sync: str, degrees: tuple[int, ...]) -> Run:
    """One step, 64 samples a rank."""
    ranks = max(1, n // SAMPLES_A_RANK)
    usable = tuple(d for d in degrees if d <= ranks)
    cap = -(-65_536 // usable[-1])  # the widest group holds the longest sample
    given = lengths(n)
    return lambda: plan_step(
        given,
        topology=Topology(ranks, ranks_per_node=8 if ranks >= 8 else None),
        max_tokens=max(cap, 16_384),
        cost=COST,
        cp_degrees=usable,
        sync=sync,
    )


def dividing(n: int) -> Run:
    """Costs into parts of 64."""
    costs = lengths(n).astype(np.float64)
    return lambda: partition(costs, max(2, n // SAMPLES_A_RANK))


def walking(n: int) -> Run:
    """Four simulated steps, planned and walked, with jitter; 16 samples a rank."""
    ranks = max(8, n // 16)
    given = lengths(4 * ranks * 16)
    return lambda: simulate(
        given,
        topology=Topology(ranks, ranks_per_node=8),
        max_tokens=16_384,
        cost=COST,
        cp_degrees=(1, 2, 4, 8),
        global_batch_size=ranks * 16,
        steps=4,
        jitter=0.03,
        policies=["balanced"],
    )


def order(n: int) -> Run:
    """512 shuffled rows in the middle of an epoch of n."""
    return lambda: permute(np.arange(n // 2, n // 2 + 512), n, 12345)


WORK: Mapping[str, tuple[str, Callable[[int], Run], tuple[int, ...]]] = MappingProxyType(
    {
        "pack": ("lengths", packing, (10_000, 100_000, 1_000_000, 10_000_000)),
        "stream": ("lengths", stream, (10_000, 100_000, 1_000_000)),
        "plan, meet in step": (
            "samples",
            lambda n: planning(n, "step", (1, 2, 4, 8)),
            (512, 2048, 8192, 32_768, 131_072, 524_288),
        ),
        "plan, meet in micro-batch": (
            "samples",
            lambda n: planning(n, "micro_batch", (1, 2, 4, 8)),
            (512, 2048, 8192, 32_768, 131_072),
        ),
        "partition": ("costs", dividing, (512, 4096, 32_768, 262_144)),
        "simulate 4 steps": ("samples", walking, (512, 4096, 32_768, 131_072)),
        "shuffled order": ("rows of an epoch", order, (10**4, 10**6, 10**8, 10**10)),
    }
)
"""Name -> (what is counted, makes the run of a size, sizes)."""


def least_seconds(run: Run) -> float:
    """Least CPU seconds of a few runs, each long enough for the clock; the first one compiles."""
    run()
    start = time.process_time()
    run()
    calls = max(1, int(0.01 / max(time.process_time() - start, 1e-7)))
    taken = []
    for _ in range(REPEATS):
        start = time.process_time()
        for _ in range(calls):
            run()
        taken.append((time.process_time() - start) / calls)
    return min(taken)


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """Slope of the line through the logarithms of the upper half."""
    upper = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[upper:]), np.log(seconds[upper:]), 1)[0])


def draw(rows: list[dict[str, Any]]) -> None:
    """Every curve, with a linear one to compare with."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    for work in WORK:
        mine = [row for row in rows if row["work"] == work]
        axes.plot([r["size"] for r in mine], [r["cpu_s"] for r in mine], "o-", markersize=4, label=work)
    guide = np.array([1e4, 1e8])
    axes.plot(guide, guide * 3e-8, ":", color="#777777", label="linear")
    axes.set(xscale="log", yscale="log", xlabel="size of the work", ylabel="CPU seconds")
    axes.grid(alpha=0.25)
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    figure.savefig(FIGURES / "scaling.png", dpi=130)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    rows, fits = [], []
    for work, (unit, make, sizes) in WORK.items():
        seconds = [least_seconds(make(size)) for size in sizes]
        rows += [
            {"work": work, "unit": unit, "size": size, "cpu_s": s, "ns_each": 1e9 * s / size}
            for size, s in zip(sizes, seconds, strict=True)
        ]
        fits.append({"work": work, "unit": unit, "exponent": exponent(list(sizes), seconds)})
    publish("scaling", rows)
    publish("scaling_exponents", fits)
    draw(rows)


if __name__ == "__main__":
    main()
