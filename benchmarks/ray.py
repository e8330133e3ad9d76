"""What the data plane on Ray saves and costs: memory, idle CPUs, planning for 4,096 ranks, overhead.

    python -m benchmarks ray [SECTION ...]        all without one

``planner`` needs no Ray and plays all ranks in one process. The others start a cluster of this machine's
CPUs. Each section prints its rows and writes them to ``benchmarks/results/ray_<section>.csv``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from benchmarks.harness import publish


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


def overhead() -> None:
    """Plain text on one machine: what Ray costs where it is not needed."""
    from benchmarks._ray_decode import overhead_rows

    publish("ray_overhead", overhead_rows())


SECTIONS: dict[str, Callable[[], Any]] = {
    "planner": planner,
    "memory": memory,
    "decode": decode,
    "overhead": overhead,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ray", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    for name in parser.parse_args().sections or SECTIONS:
        SECTIONS[name]()


if __name__ == "__main__":
    main()
