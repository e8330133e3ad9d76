"""CPU time of a process and all that it started, and the loop that reads batches by the clock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Epoch = Callable[[], Iterable[tuple[int, int]]]
"""Starts an epoch; gives (documents, tokens) of each batch once it is there."""

WARM_UP_S = 1.0
TICKS = os.sysconf("SC_CLK_TCK")


def tree_cpu_s(root: int | None = None) -> float:
    """User and system seconds of a process and its descendants, those that have ended included. Linux."""
    parents, used = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                # the name in parentheses may hold blanks
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents[int(folder.name)] = int(fields[1])
            used[int(folder.name)] = sum(map(int, fields[11:15])) / TICKS
    total, wanted = 0.0, {os.getpid() if root is None else root}
    while wanted:
        total += sum(used.get(process, 0.0) for process in wanted)
        wanted = {process for process, parent in parents.items() if parent in wanted}
    return total


def run(open_loader: Callable[[], Epoch], seconds: float) -> dict[str, Any]:
    """Read for a second to warm up, then for ``seconds``, over as many epochs as that takes.

    The first batch is timed from the opening of the loader, modules being imported.
    """
    began = time.perf_counter()
    epoch = open_loader()
    first_s = 0.0
    documents = tokens = batches = 0
    start = cpu = None
    while True:
        for held, size in epoch():
            now = time.perf_counter()
            first_s = first_s or now - began
            if start is None:
                if now - began - first_s >= WARM_UP_S:
                    cpu, start = tree_cpu_s(), time.perf_counter()
                continue
            documents, tokens, batches = documents + held, tokens + size, batches + 1
            if now - start >= seconds and batches > 1:
                assert cpu is not None
                wall, used = time.perf_counter() - start, tree_cpu_s() - cpu
                return {
                    "documents_per_cpu_s": documents / used,
                    "tokens_per_cpu_s": tokens / used,
                    "documents_per_s": documents / wall,
                    "tokens_per_s": tokens / wall,
                    "first_batch_s": first_s,
                    "batches": batches,
                }
