"""Paired timing, rows with their environment, and where results go."""

from __future__ import annotations

import csv
import importlib.util
import os
import platform
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
FIGURES = Path(__file__).parents[1] / "docs" / "images"
"""Figures lie with the pages that show them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """How many times slower B is than A, over paired rounds."""

    a_s: float
    """Median CPU seconds of A."""
    b_s: float
    """Median CPU seconds of B."""
    median: float
    low: float
    """Ends of an interval that holds the true median with at least 95 % (order statistics)."""
    high: float


def cpu_seconds(run: Callable[[], Any]) -> float:
    """CPU seconds of one run, all threads."""
    start = time.process_time()
    run()
    return time.process_time() - start


def paired(a: Callable[[], Any], b: Callable[[], Any], *, rounds: int = 7) -> Ratio:
    """Run A and B in turn, so that a busy machine hits both; the first run of each is thrown away."""
    a()
    b()
    times = [(cpu_seconds(a), cpu_seconds(b)) for _ in range(rounds)]
    ratios = sorted(y / x for x, y in times)
    cut = _outer(rounds)
    return Ratio(
        a_s=statistics.median(x for x, _ in times),
        b_s=statistics.median(y for _, y in times),
        median=statistics.median(ratios),
        low=ratios[cut],
        high=ratios[-1 - cut],
    )


def _outer(rounds: int) -> int:
    """Ratios to leave out at either end so that the rest covers the median with at least 95 %."""
    cut, below = 0, 0.5**rounds
    while cut < rounds // 2:
        below += 0.5**rounds * np.prod([(rounds - k) / (k + 1) for k in range(cut + 1)])
        if 2 * below > 0.05:
            break
        cut += 1
    return cut


def environment() -> dict[str, Any]:
    """What a number depends on beside the code."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def publish(name: str, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows, each with the environment, to ``results/NAME.csv``, and print them."""
    surroundings = environment()
    rows = list(rows)
    written = [{**row, **surroundings} for row in rows]
    names = list(dict.fromkeys(name for row in written for name in row))
    path = RESULTS / f"{name}.csv"
    RESULTS.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=names)
        writer.writeheader()
        writer.writerows(written)
    print(f"\n{name}")
    for row in rows:
        print("  " + "  ".join(f"{key} {_short(value)}" for key, value in row.items()), flush=True)
    return path


def read(name: str) -> Sequence[dict[str, str]]:
    """Rows of ``results/NAME.csv``."""
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def written(name: str) -> bool:
    """Whether there are rows of that name."""
    return (RESULTS / f"{name}.csv").exists()


def load_with_stubs(path: Path, stubs: dict[str, dict[str, Any]]) -> Any:
    """A module of a peer, with stand-ins for what its file imports and the function does not use."""
    for name, names in stubs.items():
        module = types.ModuleType(name)
        module.__dict__.update(names)
        sys.modules[name] = module
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
