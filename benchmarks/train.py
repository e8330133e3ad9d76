"""The two-rank run of ``make demo``: three ways to train, what was measured beside what was predicted.

    python -m benchmarks train [--seconds 125] [--keep]

Runs ``examples/demo.py`` (``--keep``: reads the results of an earlier run) and writes what each way took,
beside the cost model's prediction for the same steps, to ``benchmarks/results/train_ways.csv``, and the
paired ratios with 95 % intervals to ``train_ratios.csv``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import FIGURES, publish

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "demo"


def ways(results: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each way to train, lists as their ends."""
    return [
        {
            key: value
            for name, entry in row.items()
            for key, value in (
                {f"{name}_low": entry[0], f"{name}_high": entry[1]}
                if isinstance(entry, list)
                else {name: entry}
            ).items()
        }
        for row in results["policies"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=125.0, help="time for the training steps")
    parser.add_argument("--keep", action="store_true", help="read the results of an earlier run")
    arguments = parser.parse_args()
    if not arguments.keep:
        command = [sys.executable, "examples/demo.py", f"--out={DEMO}", f"--seconds={arguments.seconds}"]
        subprocess.run(command, cwd=ROOT, check=True)
    results = json.loads((DEMO / "results.json").read_text())
    publish("train_ways", ways(results))
    publish("train_ratios", results["ratios"])
    shutil.copy(DEMO / "timeline.png", FIGURES / "train_timeline.png")


if __name__ == "__main__":
    main()
