"""Pictures of a run: who computes and who waits in some steps, and the loss of each policy.

python examples/timeline.py demo/results.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from table import NAMES

TITLES = {
    "padded": "before: padded to the longest sample",
    "packed": "packed, every rank the same number of samples",
    "balanced": "evenload: packed and balanced",
}
COLOURS = {"real": "#2a7f9e", "padding": "#b9c4c9", "wait": "#f0803c"}
LEGEND = {"real": "busy", "padding": "busy with padding", "wait": "idle: waits for the other rank"}
BAR_HEIGHT = 0.72
ENLARGE_BELOW = 0.6


def shares_of(record: dict[str, Any]) -> list[tuple[str, float, float]]:
    """("real" | "padding" | "wait", start, end) in the order of time.

    Reading, computing and updating are work. A batch's real and padding tokens are computed together, so the
    time of its padding is drawn after that of its real tokens.
    """
    real = record["real_tokens"] / record["computed_tokens"]
    spans: list[tuple[str, float, float]] = []
    for kind, start, end in record["segments"]:
        between = start + real * (end - start) if kind == "compute" else end
        pieces = [("real", start, between), ("padding", between, end)]
        for name, left, right in [("wait", start, end)] if kind == "wait" else pieces:
            if spans and spans[-1][0] == name:
                spans[-1] = (name, spans[-1][1], right)
            elif right > left:
                spans.append((name, left, right))
    return spans


def steps_of(results: dict[str, Any], policy: str, steps: list[int]) -> list[list[dict[str, Any]]]:
    """Records of ``policy``, one list a step, in rank order."""
    records = [record for record in results["records"] if record["policy"] == policy]
    return [
        sorted((record for record in records if record["step"] == step), key=lambda record: record["rank"])
        for step in steps
    ]


def bounds_of(ranks: list[dict[str, Any]]) -> tuple[float, float]:
    """When the first rank starts a step and the last one ends it."""
    starts = [record["segments"][0][1] for record in ranks]
    return min(starts), max(record["segments"][-1][2] for record in ranks)


def draw_steps(axes: Any, steps: list[list[dict[str, Any]]], numbers: list[int], *, label: bool) -> None:
    """The steps of one policy one after the other, a bar for each rank."""
    at = 0.0
    for number, ranks in zip(numbers, steps, strict=True):
        start, end = bounds_of(ranks)
        for record in ranks:
            for name, left, right in shares_of(record):
                place = (record["rank"] - BAR_HEIGHT / 2, BAR_HEIGHT)
                axes.broken_barh([(at + left - start, right - left)], place, facecolors=COLOURS[name])
        axes.plot([at + end - start] * 2, [-0.5, len(ranks) - 0.5], color="black", linewidth=1.2)
        if label:
            axes.text(at + (end - start) / 2, -0.45, f"step {number}", ha="center", va="bottom", fontsize=8)
        at += end - start
    axes.set_ylim(len(steps[0]) - 0.5, -0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def draw_timeline(results: dict[str, Any], path: Path, *, first_step: int, num_steps: int = 4) -> None:
    """Per-rank busy and idle time of the same few steps under every policy, on one time axis.

    What is short on that axis is drawn once more beside itself, enlarged.
    """
    numbers = list(range(first_step, first_step + num_steps))
    steps = {row["policy"]: steps_of(results, row["policy"], numbers) for row in results["policies"]}
    seconds = {
        policy: sum(end - start for start, end in map(bounds_of, rows)) for policy, rows in steps.items()
    }
    longest = max(seconds.values())
    short = max(second for second in seconds.values() if second < longest)
    figure = Figure(figsize=(12, 1.9 * len(steps) + 0.8))
    rows = figure.subplots(len(steps), 1, sharex=True)
    for axes, (policy, ranks) in zip(rows, steps.items(), strict=True):
        enlarge = seconds[policy] < ENLARGE_BELOW * longest
        draw_steps(axes, ranks, numbers, label=not enlarge)
        axes.set_yticks(range(results["ranks"]), [f"rank {rank}" for rank in range(results["ranks"])])
        axes.set_title(caption(policy, ranks, seconds[policy]), loc="left", fontsize=11)
        if enlarge:
            left = short / longest + 0.05
            inset = axes.inset_axes([left, 0.0, 1.0 - left, 1.0], facecolor="#f6f6f6")
            draw_steps(inset, ranks, numbers, label=True)
            axes.spines["bottom"].set_visible(False)
            axes.tick_params(axis="x", length=0, labelbottom=False)
            inset.set_yticks([])
            inset.set_xlim(0, short * 1.01)
            inset.xaxis.set_major_formatter("{x:g} s")
            inset.tick_params(axis="x", labelsize=8)
            inset.set_title("enlarged", loc="right", fontsize=9)
        else:
            axes.xaxis.set_major_formatter("{x:g} s")
            axes.tick_params(axis="x", labelbottom=True, labelsize=8)
    rows[-1].set_xlim(0, longest * 1.002)
    legend = [Patch(color=COLOURS[name], label=text) for name, text in LEGEND.items()]
    figure.legend(handles=legend, loc="upper right", ncols=len(legend), frameon=False, fontsize=10)
    figure.suptitle(f"The same {num_steps} steps, three ways", x=0.01, ha="left", fontsize=13, weight="bold")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def caption(policy: str, steps: list[list[dict[str, Any]]], seconds: float) -> str:
    """What the policy is, how long the steps take, and how much of the ranks' time is idle or padding."""
    spans = [span for ranks in steps for record in ranks for span in shares_of(record)]
    rank_s = seconds * len(steps[0])
    share = {
        kind: sum(end - start for name, start, end in spans if name == kind) / rank_s for kind in COLOURS
    }
    padding = f", {share['padding']:.0%} on padding" if share["padding"] > 0 else ""
    return f"{TITLES.get(policy, policy)}: {seconds:.1f} s{padding}, {share['wait']:.0%} idle"


def draw_losses(results: dict[str, Any], path: Path) -> None:
    """The loss of every step under each policy."""
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    styles = {
        "padded": ("#999999", "-", 1.5),
        "packed": ("#d1603d", "-", 4.0),
        "balanced": ("#2a7f9e", "-", 1.5),
    }
    for row in results["policies"]:
        colour, style, width = styles.get(row["policy"], ("black", "-", 1.5))
        steps = range(results["first_step"], results["first_step"] + len(row["loss"]))
        axes.plot(
            steps, row["loss"], color=colour, linestyle=style, linewidth=width, label=NAMES[row["policy"]]
        )
    axes.set_xlabel("step")
    axes.set_ylabel("loss per token")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=140)


def typical_steps(results: dict[str, Any], num_steps: int = 4) -> int:
    """First of the ``num_steps`` neighbouring steps whose speed-up is closest to that of the whole run."""
    policies = [row["policy"] for row in results["policies"]]
    first, last = policies[0], policies[-1]
    numbers = sorted(
        {record["step"] for record in results["records"] if record["step"] >= results["first_step"]}
    )

    def seconds(policy: str, steps: list[int]) -> float:
        return sum(
            max(record["segments"][-1][2] for record in ranks)
            - min(record["segments"][0][1] for record in ranks)
            for ranks in steps_of(results, policy, steps)
        )

    middle = policies[-2]
    overall = [seconds(policy, numbers) / seconds(last, numbers) for policy in (first, middle)]

    def distance(start: int) -> float:
        steps = list(range(start, start + num_steps))
        speed_ups = [seconds(policy, steps) / seconds(last, steps) for policy in (first, middle)]
        return sum(abs(here / all_ - 1) for here, all_ in zip(speed_ups, overall, strict=True))

    return min(numbers[: len(numbers) - num_steps + 1], key=distance)


def draw(results_path: Path) -> list[Path]:
    """``timeline.png`` and ``loss.png`` beside the results."""
    results = json.loads(results_path.read_text())
    paths = [results_path.with_name("timeline.png"), results_path.with_name("loss.png")]
    draw_timeline(results, paths[0], first_step=typical_steps(results))
    draw_losses(results, paths[1])
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="?", default=Path("demo/results.json"))
    for drawn in draw(parser.parse_args().results):
        print(drawn)
