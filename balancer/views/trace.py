"""A plan as a timeline for Perfetto (ui.perfetto.dev) or chrome://tracing.

Chrome's trace event format: complete events (``"X"``) in microseconds, one thread for each rank.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from balancer.plan import StepPlan
from balancer.views.timeline import timeline


def trace_plans(plans: StepPlan | Iterable[StepPlan], path: str | Path | None = None) -> dict[str, Any]:
    """The trace of one step, or of steps one after the other.

    Args:
        plans: what to show.
        path: where to write the JSON, if anywhere; ``.gz`` is compressed, and Perfetto opens both.
    """
    events: list[dict[str, Any]] = []
    start_s, ranks = 0.0, 0
    for step, plan in enumerate([plans] if isinstance(plans, StepPlan) else plans):
        events += _step_events(plan, step, start_s)
        start_s += plan.time_s
        ranks = max(ranks, plan.ranks)
    trace = {"traceEvents": [*_names(ranks), *events], "displayTimeUnit": "ms"}
    if path is not None:
        _write(trace, Path(path))
    return trace


def _names(ranks: int) -> list[dict[str, Any]]:
    named: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "predicted steps"}}
    ]
    for rank in range(ranks):
        who = {"ph": "M", "pid": 0, "tid": rank}
        named.append({**who, "name": "thread_name", "args": {"name": f"rank {rank}"}})
        named.append({**who, "name": "thread_sort_index", "args": {"sort_index": rank}})
    return named


def _step_events(plan: StepPlan, step: int, start_s: float) -> list[dict[str, Any]]:
    spans, batches = timeline(plan), plan.micro_batches
    samples = np.diff(batches.offsets)
    begin_us, end_us = (start_s + spans.start_s) * 1e6, (start_s + spans.end_s) * 1e6
    events: list[dict[str, Any]] = [
        {
            "ph": "i",
            "s": "g",
            "pid": 0,
            "tid": 0,
            "ts": start_s * 1e6,
            "name": f"step {step}: {plan.time_s:.4g} s, gap {plan.gap:.2%}",
        }
    ]
    for i in range(spans.rank.size):
        m = int(spans.micro_batch[i])
        events.append(
            {
                "ph": "X",
                "pid": 0,
                "tid": int(spans.rank[i]),
                "ts": float(begin_us[i]),
                "dur": float(end_us[i] - begin_us[i]),
                "name": f"slot {batches.slot[m]}, degree {batches.cp_degree[m]}",
                "cat": f"degree {batches.cp_degree[m]}",
                "args": {
                    "step": step,
                    "micro_batch": m,
                    "tokens": int(batches.tokens[m]),
                    "samples": int(samples[m]),
                    "cost_s": float(batches.cost_s[m]),
                },
            }
        )
    return events


def _write(trace: dict[str, Any], path: Path) -> None:
    text = json.dumps(trace)
    if path.suffix == ".gz":
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.write(text)
    else:
        path.write_text(text, encoding="utf-8")
