"""Memory and CPU time of other processes, from ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def pss_bytes(process: int) -> int:
    """Proportional set size: own pages, and a fair share of those that others have too; 0 when it is gone."""
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def descendants(process: int) -> list[int]:
    """Children, their children and so on."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, left = [], [process]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def cpu_s(processes: Iterable[int]) -> float:
    """User and system seconds of processes that are alive."""
    total = 0
    for process in processes:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total * TICK_S


def own_process(actor: object) -> int:
    """Runs in an actor: which process it is. It stands here so that the actor loads nothing else for it."""
    return os.getpid()
