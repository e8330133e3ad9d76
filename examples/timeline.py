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

TITLES = {
    "padded": "before: padded to the longest sample",
    "packed": "packed, every rank the same number of samples",
    "balanced": "evenload: packed and balanced",
}
COLOURS = {"busy": "#2a7f9e", "wait": "#f2b8a0"}
BAR_HEIGHT = 0.72


def merge_busy(segments: list[list[Any]]) -> list[tuple[str, float, float]]:
    """("busy" | "wait", start, end): reading, computing and updating are all work."""
    merged: list[tuple[str, float, float]] = []
    for kind, start, end in segments:
        name = "wait" if kind == "wait" else "busy"
        if merged and merged[-1][0] == name:
            merged[-1] = (name, merged[-1][1], end)
        else:
            merged.append((name, start, end))
    return merged


def steps_of(results: dict[str, Any], policy: str, steps: list[int]) -> list[list[dict[str, Any]]]:
    """Records of ``policy``, one list a step, in rank order."""
    records = [record for record in results["records"] if record["policy"] == policy]
    return [
        sorted((record for record in records if record["step"] == step), key=lambda record: record["rank"])
        for step in steps
    ]


def draw_policy(axes: Any, steps: list[list[dict[str, Any]]], numbers: list[int]) -> float:
    """The steps of one policy one after the other; returns where the last one ends, in seconds."""
    at = 0.0
    for number, ranks in zip(numbers, steps, strict=True):
        start = min(record["segments"][0][1] for record in ranks)
        end = max(record["segments"][-1][2] for record in ranks)
        for record in ranks:
            for name, left, right in merge_busy(record["segments"]):
                axes.broken_barh(
                    [(at + left - start, right - left)],
                    (record["rank"] - BAR_HEIGHT / 2, BAR_HEIGHT),
                    facecolors=COLOURS[name],
                )
        axes.axvline(at + end - start, color="black", linewidth=0.9, ymin=0.0, ymax=0.93)
        axes.text(at + (end - start) / 2, -0.43, f"step {number}", ha="center", va="bottom", fontsize=8)
        at += end - start
    return at


def draw_timeline(results: dict[str, Any], path: Path, *, first_step: int, num_steps: int = 4) -> None:
    """Per-rank busy and idle time of the same few steps under every policy, on one time axis."""
    policies = [row["policy"] for row in results["policies"]]
    numbers = list(range(first_step, first_step + num_steps))
    figure = Figure(figsize=(11, 1.9 * len(policies) + 0.7))
    rows = figure.subplots(len(policies), 1, sharex=True)
    ends = {}
    for axes, policy in zip(rows, policies, strict=True):
        steps = steps_of(results, policy, numbers)
        ends[policy] = draw_policy(axes, steps, numbers)
        waited = sum(
            right - left
            for ranks in steps
            for record in ranks
            for name, left, right in merge_busy(record["segments"])
            if name == "wait"
        )
        idle = waited / (ends[policy] * results["ranks"])
        axes.set_title(
            f"{TITLES.get(policy, policy)}: {ends[policy]:.1f} s, ranks idle {idle:.0%}",
            loc="left",
            fontsize=11,
        )
        axes.set_yticks(range(results["ranks"]), [f"rank {rank}" for rank in range(results["ranks"])])
        axes.set_ylim(results["ranks"] - 0.5, -0.75)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    rows[-1].set_xlim(0, max(ends.values()) * 1.01)
    rows[-1].set_xlabel("seconds")
    legend = [
        Patch(color=COLOURS["busy"], label="busy"),
        Patch(color=COLOURS["wait"], label="waits for the other rank"),
    ]
    figure.legend(handles=legend, loc="upper right", ncols=2, frameon=False, fontsize=10)
    figure.suptitle(
        f"The same {num_steps} training steps, three ways", x=0.01, ha="left", fontsize=13, weight="bold"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=140)


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
        axes.plot(steps, row["loss"], color=colour, linestyle=style, linewidth=width, label=row["policy"])
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
