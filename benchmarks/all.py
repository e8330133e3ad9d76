"""Measures every table and figure of ``docs/benchmarks.md`` and of the README anew, peers included.

    python -m benchmarks all [NAME ...]        some of them; without a name, all

Each benchmark runs in a process of its own, one after the other, since they would disturb each other. Peers
come with ``pip install -c constraints.txt ".[bench]"``; one that is not installed is named and left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console

from benchmarks.harness import publish, read, written

ROOT = Path(__file__).parents[1]
RUNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "train": ("train", "--seconds", "90"),
        "packing": ("packing", "peers"),
        "planner": ("planner", "shapes"),
        "runtime": ("runtime", "--tokens", "8192", "--repeats", "5"),
        "loader": ("loader",),
        "cluster": ("cluster",),
        "scaling": ("scaling",),
    }
)
"""Name -> the arguments with which it measures what the pages show, in a few minutes at most."""


def durations(took: Mapping[str, float]) -> list[dict[str, Any]]:
    """Seconds of every run, in the order of RUNS; those that did not run now as they were before."""
    before = {row["name"]: float(row["seconds"]) for row in read("all")} if written("all") else {}
    return [{"name": name, "seconds": seconds} for name in RUNS if (seconds := {**before, **took}.get(name))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(RUNS)}")
    names = parser.parse_args().names or list(RUNS)
    if unknown := [name for name in names if name not in RUNS]:
        parser.error(f"no benchmark {unknown[0]!r} among {', '.join(RUNS)}")
    console, failed, took = Console(highlight=False), [], {}
    for number, name in enumerate(names, 1):
        console.rule(f"{number} of {len(names)}: {' '.join(RUNS[name])}", align="left")
        start = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "benchmarks", *RUNS[name]], cwd=ROOT, check=False)
        failed += [name] if done.returncode else []
        took[name] = time.monotonic() - start
        console.print(f"{name}: {took[name]:.0f} s")
    publish("all", durations(took))
    subprocess.run([sys.executable, "-m", "benchmarks", "tables"], cwd=ROOT, check=True)
    console.print(f"all: {sum(took.values()):.0f} s")
    if failed:
        sys.exit(f"failed, their tables are those of an earlier run: {', '.join(failed)}")


if __name__ == "__main__":
    main()
