"""A plan as a picture: what each rank does when."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from balancer.plan import StepPlan
from balancer.views.timeline import timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_IDLE = "#e4e4e4"


def plot_plan(plan: StepPlan, path: str | Path | None = None) -> Figure:
    """A bar for each rank: its micro-batches one after the other, coloured by CP degree, idle time in grey.

    Lines mark the predicted end of the step and the proven bound. Needs matplotlib (``evenload[plot]``).

    Args:
        plan: what to draw.
        path: where to save it, if anywhere; the suffix gives the format.
    """
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    spans = timeline(plan)
    degrees = np.unique(plan.micro_batches.cp_degree).tolist()
    colours = _colours(len(degrees))
    figure = Figure(figsize=(10, min(2.2 + 0.22 * plan.ranks, 9)), layout="constrained")
    axes = figure.add_subplot()
    height = 0.8 if plan.ranks <= 128 else 1.0
    end_s = max(plan.time_s, float(spans.end_s.max(initial=0.0)))
    axes.barh(np.arange(plan.ranks), end_s, height=height, color=_IDLE, linewidth=0)
    handles: list[Any] = []
    for degree, colour in zip(degrees, colours, strict=True):
        mine = plan.micro_batches.cp_degree[spans.micro_batch] == degree
        boxes = _boxes(spans.start_s[mine], spans.end_s[mine], spans.rank[mine], height)
        axes.add_collection(PolyCollection(boxes, facecolor=colour, edgecolor="none", antialiased=False))
        handles.append(Patch(color=colour, label=f"degree {degree}"))
    # Borders between micro-batches only: a frame around each bar would hide the bars of a thousand ranks.
    borders = _boxes(spans.end_s, spans.end_s, spans.rank, height)[:, :2]
    axes.add_collection(LineCollection(borders, color="white", linewidth=0.8))
    handles.append(Patch(color=_IDLE, label="idle"))
    handles.append(axes.axvline(plan.time_s, color="#333333", linewidth=1.2, label="end of step"))
    if plan.lower_bound_s > 0:
        bound = axes.axvline(plan.lower_bound_s, color="#333333", linewidth=1.2, linestyle=":", label="bound")
        handles.append(bound)
    _label(axes, plan, end_s)
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 8), frameon=False)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _boxes(start_s: Any, end_s: Any, rank: Any, height: float) -> Any:
    """[N, 4, 2] corners of the bars."""
    low, high = rank - height / 2, rank + height / 2
    corners = [(start_s, low), (start_s, high), (end_s, high), (end_s, low)]
    return np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)


def _colours(number: int) -> list[Any]:
    """Light to dark with the degree, readable in grey as well."""
    from matplotlib import colormaps

    return [colormaps["viridis_r"](x) for x in np.linspace(0.25, 0.9, max(number, 1))][:number]


def _label(axes: Any, plan: StepPlan, end_s: float) -> None:
    axes.set_xlim(0, end_s * 1.01 if end_s > 0 else 1.0)
    axes.set_ylim(plan.ranks - 0.5, -0.5)
    axes.set_xlabel("seconds from the start of the step (predicted)")
    axes.set_ylabel("rank")
    axes.yaxis.get_major_locator().set_params(integer=True)
    busy = plan.rank_time_s.mean() / plan.time_s if plan.time_s > 0 else 1.0
    axes.set_title(
        f"{plan.policy}, sync={plan.sync!r}: {plan.time_s:.4g} s, gap {plan.gap:.2%}, "
        f"imbalance {plan.imbalance:.3f}, idle {max(1 - busy, 0):.1%}",
        fontsize=10,
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
