"""What the data plane on Ray saves and costs: memory, idle CPUs, planning for 4,096 ranks, overhead.

    python -m benchmarks ray [SECTION ...]        all without one

``planner`` needs no Ray and plays all ranks in one process. The others start a cluster of this machine's
CPUs. Each section prints its rows and writes them to ``benchmarks/results/ray_<section>.csv``; ``figure``
draws what has been measured.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from benchmarks.harness import FIGURES, publish, read


def planner() -> None:
    """4,096 ranks, 300 sources, metadata only."""
    from benchmarks._ray_planner import planner_rows

    publish("ray_planner", planner_rows())


def memory() -> None:
    """100 sources, 1, 2 and 4 ranks: workers with all files open, or actors that all ranks share."""
    from benchmarks._ray_memory import memory_rows

    publish("ray_memory", memory_rows())


def decode() -> None:
    """A source that is heavy to decode beside a light one: CPUs that idle, and batches that come in time."""
    from benchmarks._ray_decode import decode_rows

    publish("ray_decode", decode_rows())


def pictures() -> None:
    """The same with real pictures, where nothing else runs."""
    from benchmarks._ray_decode import picture_rows

    publish("ray_pictures", picture_rows())


def overhead() -> None:
    """Plain text on one machine: what Ray costs where it is not needed."""
    from benchmarks._ray_decode import overhead_rows

    publish("ray_overhead", overhead_rows())


def figure() -> None:
    """Memory by ranks, share of the ideal throughput, steps planned a second."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    rows = read("ray_memory")
    ranks = sorted({int(row["ranks"]) for row in rows})
    kinds = list(dict.fromkeys(row["loader"] for row in rows))
    parts = {
        "workers_or_actors_MB": "workers or actors",
        "in_ranks_MB": "in ranks",
        "rays_own_MB": "Ray itself",
    }
    for at, kind in enumerate(kinds):
        places = [number + (at - 1) * 0.27 for number in range(len(ranks))]
        mine = {int(row["ranks"]): row for row in rows if row["loader"] == kind}
        below = [0.0] * len(ranks)
        for shade, (key, label) in enumerate(parts.items()):
            sizes = [max(float(mine[number][key]), 0.0) / 1e3 for number in ranks]
            left.bar(places, sizes, 0.25, bottom=below, color=f"C{at}", alpha=1 - 0.3 * shade,
                     label=f"{kind}: {label}" if sum(sizes) else None)  # fmt: skip
            below = [under + size for under, size in zip(below, sizes, strict=True)]
    left.set_xticks(range(len(ranks)), [f"{number} ranks" for number in ranks])
    left.set(title="memory of the data plane, 100 sources", ylabel="GB (PSS)")
    left.legend(fontsize=7)
    rows = [row for row in read("ray_decode") if row.get("of_ideal")]
    labels = [f"{row['engine']}\n{row['work']},\n{row['cpus']} CPUs" for row in rows]
    colors = ["C2" if row["engine"] == "ray" else "C1" for row in rows]
    middle.bar(labels, [float(row["of_ideal"]) for row in rows], color=colors)
    middle.axhline(1.0, color="grey", linewidth=0.8)
    middle.set(title="throughput over all CPUs busy decoding")
    middle.tick_params(axis="x", labelsize=7)
    rows = read("ray_planner")
    right.plot(
        [int(row["samples a rank"]) for row in rows], [float(row["steps_per_cpu_s"]) for row in rows], "o-"
    )
    right.axhline(20.0, color="grey", linewidth=0.8)
    right.set(ylim=(0, None), xlabel="samples a rank and step", ylabel="steps a CPU second")
    right.set(title=f"planning for {rows[0]['ranks']} ranks, {rows[0]['sources']} sources")
    drawn.savefig(FIGURES / "ray.png", dpi=130)


SECTIONS: dict[str, Callable[[], Any]] = {
    "planner": planner,
    "memory": memory,
    "decode": decode,
    "pictures": pictures,
    "overhead": overhead,
    "figure": figure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ray", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    # beside other work, Ray's workers would lose against torch's by their niceness of 15 alone
    os.environ.setdefault("RAY_worker_niceness", "0")
    for name in parser.parse_args().sections or SECTIONS:
        SECTIONS[name]()


if __name__ == "__main__":
    main()
