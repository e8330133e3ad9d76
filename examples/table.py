"""The results of a run as a table: on the terminal, or as Markdown for the README.

python examples/table.py demo/results.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

NAMES = {
    "padded": "torch DataLoader, padded",
    "packed": "packed, equal sample counts",
    "balanced": "evenload, packed and balanced",
}
HEADER = (
    "",
    "tokens/s",
    "step (quartiles)",
    "padding",
    "fill",
    "waiting",
    "imbalance: predicted",
    "measured",
)
CLOCKS = {"wall_s": "wall time", "critical_s": "CPU time on the critical path"}


def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """The cells of `HEADER`, one row a policy."""
    return [
        (
            NAMES.get(row["policy"], row["policy"]),
            f"{row['tokens_per_s']:,.0f}",
            f"{row['step_s']:.2f} s ({row['step_s_quartiles'][0]:.2f}-{row['step_s_quartiles'][1]:.2f})",
            f"{row['padding']:.0%}",
            f"{row['fill']:.0%}",
            f"{row['wait_share']:.0%}",
            f"{row['imbalance_predicted']:.3f}",
            f"{row['imbalance_measured']:.3f}",
        )
        for row in results["policies"]
    ]


def ratio_lines(results: dict[str, Any]) -> list[str]:
    """One line for each pair of policies and each clock."""
    return [
        f"{NAMES[ratio['faster']]} over {NAMES[ratio['slower']]}, {CLOCKS[ratio['clock']]}: "
        f"{ratio['ratio']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}]"
        for ratio in results["ratios"]
    ]


def notes(results: dict[str, Any]) -> list[str]:
    """What else belongs under the table."""
    efficiency = ", ".join(f"{NAMES[row['policy']]} {row['efficiency']:.3f}" for row in results["policies"])
    losses = ", ".join(f"{NAMES[row['policy']]} {row['loss'][-1]:.3f}" for row in results["policies"])
    return [
        f"{results['policies'][0]['steps']} paired steps on {results['ranks']} ranks; "
        "95 % intervals by bootstrap over steps",
        f"efficiency (mean / slowest rank, CPU time): {efficiency}",
        f"planning takes {results['planning_share']:.2%} of a balanced step",
        f"loss of the last step: {losses}",
    ]


def markdown(results: dict[str, Any]) -> str:
    """The table as the README shows it."""
    lines = ["| " + " | ".join(HEADER) + " |", "| --- |" + " ---: |" * (len(HEADER) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows(results)]
    lines += ["", *(f"- {line}" for line in ratio_lines(results) + notes(results))]
    return "\n".join(lines)


def print_results(results: dict[str, Any], console: Console | None = None) -> None:
    """The same on a terminal."""
    console = console or Console(highlight=False, soft_wrap=True)
    table = Table(*HEADER, title="The same training steps, three ways", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows(results):
        table.add_row(*row)
    console.print(table)
    for line in ratio_lines(results) + notes(results):
        console.print(line)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="?", default=Path("demo/results.json"))
    print(markdown(json.loads(parser.parse_args().results.read_text())))
