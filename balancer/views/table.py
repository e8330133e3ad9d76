"""A plan as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from balancer.plan import StepPlan
from balancer.views.timeline import rank_sums

if TYPE_CHECKING:
    from rich.table import Table

_BAR = 12
"""Cells of a full bar: with it the table fits a terminal of 80."""


def plan_table(plan: StepPlan, *, max_ranks: int = 16) -> Table:
    """One row for each rank, or for the slowest and fastest of many.

    Title: predicted time against the bound. Caption: how many micro-batches run at each CP degree.
    """
    from rich.table import Table

    batches = plan.micro_batches
    ones = np.ones(len(batches))
    columns = {
        "micro-\nbatches": rank_sums(plan, ones),
        "samples": rank_sums(plan, np.diff(batches.offsets)),
        "tokens": rank_sums(plan, batches.tokens / batches.cp_degree),
    }
    title = (
        f"{plan.policy}: {plan.time_s:.4g} s predicted, bound {plan.lower_bound_s:.4g} s, "
        f"gap {plan.gap:.2%}, imbalance {plan.imbalance:.3f}"
    )
    table = Table(title=title, caption=_degrees(plan), pad_edge=False)
    for name in ("rank", *columns, "busy, s", "idle"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for rank in _shown(plan, max_ranks):
        if rank is None:
            table.add_row("...")
            continue
        busy = float(plan.rank_time_s[rank])
        share = busy / plan.time_s if plan.time_s > 0 else 0.0
        bar = "█" * round(_BAR * min(share, 1.0))
        cells = [f"{column[rank]:,.0f}" for column in columns.values()]
        table.add_row(str(rank), *cells, f"{busy:.4g}", f"{max(1 - share, 0):.1%}", bar)
    return table


def _shown(plan: StepPlan, max_ranks: int) -> list[int | None]:
    """Ranks to print, ``None`` where some are left out."""
    if plan.ranks <= max_ranks:
        return list(range(plan.ranks))
    by_time = np.argsort(-plan.rank_time_s, kind="stable").tolist()
    half = max(max_ranks // 2, 1)
    return [*by_time[:half], None, *by_time[-half:]]


def _degrees(plan: StepPlan) -> str:
    batches = plan.micro_batches
    samples = np.diff(batches.offsets)
    parts = []
    for degree in np.unique(batches.cp_degree).tolist():
        mine = batches.cp_degree == degree
        parts.append(
            f"degree {degree}: {mine.sum():,} of {mine.size:,} micro-batches, {samples[mine].sum():,} samples"
        )
    return "; ".join(parts) or "an empty step"
