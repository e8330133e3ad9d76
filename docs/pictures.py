"""Draws the pictures of ``docs/concepts.md`` from real packs and plans: ``python docs/pictures.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from balancer import CostModel, StepPlan, Topology, plan_step
from balancer.views.timeline import timeline
from packing import pack

IMAGES = Path(__file__).with_name("images")
COST = CostModel.generic()
PAD, LATE, INK = "#dedede", "#e07b39", "#333333"
DEGREES = {1: "#9ecae1", 2: "#4292c6", 4: "#08519c", 8: "#08306b", 16: "#3f007d"}


def lengths(n: int, seed: int, longest: int) -> np.ndarray:
    """Log-normal, as chat and instruction data are."""
    drawn = np.random.default_rng(seed).lognormal(6.6, 1.1, n)
    return np.clip(drawn, 32, longest).astype(np.int64)


def padding() -> None:
    """The same twelve samples padded to the longest, and packed."""
    tokens, cap = lengths(12, 5, 4096), 4096
    packs = pack(tokens, cap)
    rows = [list(packs[p]) for p in range(len(packs))]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 2.9), layout="constrained", gridspec_kw={"width_ratios": [1, 1]}
    )
    shades = plt.colormaps["viridis"](np.linspace(0.15, 0.85, len(tokens)))
    for row, n in enumerate(tokens):
        left.barh(row, tokens.max(), color=PAD, height=0.82)
        left.barh(row, n, color=shades[row], height=0.82)
    for row, members in enumerate(rows):
        at = 0
        right.barh(row, cap, color=PAD, height=0.82)
        for member in members:
            right.barh(row, tokens[member], left=at, color=shades[member], height=0.82, edgecolor="white")
            at += int(tokens[member])
    filled = tokens.sum()
    waste = 1 - filled / tokens.max() / len(tokens), 1 - filled / cap / len(rows)
    left.set_title(f"padded: {len(tokens)} rows, {waste[0]:.0%} of them padding", fontsize=10)
    right.set_title(f"packed: {len(rows)} rows, {waste[1]:.0%} of them padding", fontsize=10)
    for axes in (left, right):
        axes.set(xlabel="tokens", xlim=(0, cap), yticks=[], ylim=(len(tokens) - 0.4, -0.6))
        axes.set_ylabel("samples" if axes is left else "packs")
        _bare(axes)
    figure.savefig(IMAGES / "padding.png", dpi=130)


def ranks() -> None:
    """Three ways to divide one step among eight ranks, on one time axis."""
    given: dict[str, Any] = {"topology": Topology(ranks=8), "max_tokens": 32_768, "cost": COST}
    tokens = lengths(96, 1, 32_768)
    plans = [
        plan_step(tokens, policy=name, **given) for name in ("equal_samples", "equal_tokens", "balanced")
    ]
    slowest = max(plan.time_s for plan in plans)
    figure, panels = plt.subplots(3, 1, figsize=(10, 6), sharex=True, layout="constrained")
    for axes, plan in zip(panels, plans, strict=True):
        _gantt(axes, plan, slowest)
        wait = 1 - plan.rank_time_s.mean() / plan.time_s
        axes.set_title(f"{plan.policy}: the ranks wait {wait:.0%} of the step", fontsize=10, loc="left")
    panels[-1].set_xlabel("time, in multiples of the balanced step")
    panels[-1].set_xlim(0, slowest * 1.01)
    ticks = np.arange(0, slowest / plans[-1].time_s + 0.1, 0.25)
    panels[-1].set_xticks(ticks * plans[-1].time_s, [f"{tick:.2f}" for tick in ticks])
    figure.savefig(IMAGES / "ranks.png", dpi=130)


def degrees() -> None:
    """One degree for all against a degree for each micro-batch."""
    tokens = np.append(lengths(600, 3, 9000), [100_000, 28_000, 26_000, 14_000])
    given: dict[str, Any] = {"topology": Topology(ranks=16, ranks_per_node=8), "max_tokens": 8192}
    cost = CostModel.preset("flexsp-a100-7b")
    plans = [
        plan_step(tokens, policy="static_cp", cp_degrees=(16,), cost=cost, **given),
        plan_step(tokens, policy="balanced", cp_degrees=(1, 2, 4, 8, 16), cost=cost, **given),
    ]
    slowest = max(plan.time_s for plan in plans)
    figure, panels = plt.subplots(2, 1, figsize=(10, 6), sharex=True, layout="constrained")
    names = ("degree 16 for all, because one sample needs it", "a degree for each micro-batch")
    for axes, plan, name in zip(panels, plans, names, strict=True):
        _gantt(axes, plan, slowest)
        axes.set_title(f"{name}: {plan.time_s:.1f} s", fontsize=10, loc="left")
    panels[-1].set_xlabel("seconds from the start of the step (predicted, 7B model on A100s)")
    panels[-1].set_xlim(0, slowest * 1.01)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in DEGREES.values()]
    figure.legend(
        handles,
        [f"{degree} rank{'s' * (degree > 1)}" for degree in DEGREES],
        loc="outside right",
        frameon=False,
    )
    figure.savefig(IMAGES / "degrees.png", dpi=130)


def _gantt(axes: Any, plan: StepPlan, slowest: float) -> None:
    """A bar for each rank and micro-batch; waiting in orange."""
    spans = timeline(plan)
    axes.barh(range(plan.ranks), plan.time_s, height=0.82, color=LATE, alpha=0.35)
    batches = plan.micro_batches.cp_degree[spans.micro_batch]
    axes.barh(
        spans.rank,
        spans.end_s - spans.start_s,
        left=spans.start_s,
        height=0.82,
        color=[DEGREES[int(degree)] for degree in batches],
        edgecolor="white",
        linewidth=0.7,
    )
    axes.axvline(plan.time_s, color=INK, linewidth=1)
    axes.set(ylabel="rank", yticks=range(plan.ranks), ylim=(plan.ranks - 0.4, -0.6))
    axes.tick_params(axis="y", labelsize=7)
    _bare(axes)


def _bare(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    padding()
    ranks()
    degrees()
