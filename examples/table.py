"""The results of a run as tables: on the terminal, or as Markdown for the README.

python examples/table.py demo/results.json [--into README.md]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

NAMES = {"padded": "padded", "packed": "packed", "balanced": "evenload"}
MEANINGS = {
    "padded": "torch DataLoader, DistributedSampler, every sample padded to the longest of its rank",
    "packed": "packed, the same number of samples for every rank, not balanced",
    "balanced": "packed and balanced by predicted time",
}
CLOCKS = {"wall_s": "wall time", "critical_s": "CPU time of the slower rank"}
POLICY_HEADER = (
    "",
    "tokens/s",
    "step (quartiles)",
    "padding",
    "fill",
    "waits (worse rank)",
    "imbalance (plan)",
)
LOSSES_SHOWN = 6
MARKERS = ("<!-- demo table -->", "<!-- end of demo table -->")


def policy_rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """The cells under `POLICY_HEADER`, one row a policy."""
    return [
        (
            NAMES[row["policy"]],
            f"{row['tokens_per_s']:,.0f}",
            f"{row['step_s']:.2f} s ({row['step_s_quartiles'][0]:.2f}-{row['step_s_quartiles'][1]:.2f})",
            f"{row['padding']:.0%}",
            f"{row['fill']:.0%}",
            f"{row['wait_share']:.0%}",
            f"{row['imbalance_measured']:.2f} ({row['imbalance_predicted']:.2f})",
        )
        for row in results["policies"]
    ]


def ratio_header() -> tuple[str, ...]:
    return ("times as fast", *CLOCKS.values())


def ratio_rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row for each pair of policies: ratio and 95 % interval on each clock."""
    pairs = dict.fromkeys((ratio["faster"], ratio["slower"]) for ratio in results["ratios"])
    found = {(ratio["faster"], ratio["slower"], ratio["clock"]): ratio for ratio in results["ratios"]}

    def cell(pair: tuple[str, str], clock: str) -> str:
        ratio = found[(*pair, clock)]
        return f"{ratio['ratio']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"

    return [
        (f"{NAMES[pair[0]]} over {NAMES[pair[1]]}", *(cell(pair, clock) for clock in CLOCKS))
        for pair in pairs
    ]


def loss_header(results: dict[str, Any]) -> tuple[str, ...]:
    return ("loss at step", *(str(results["first_step"] + at) for at in shown_steps(results)))


def loss_rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """Some steps of each loss curve; all of them are in the results and in ``loss.png``."""
    return [
        (NAMES[row["policy"]], *(f"{row['loss'][at]:.3f}" for at in shown_steps(results)))
        for row in results["policies"]
    ]


def shown_steps(results: dict[str, Any]) -> list[int]:
    steps = len(results["policies"][0]["loss"])
    return sorted(set(np.linspace(0, steps - 1, LOSSES_SHOWN).round().astype(int).tolist()))


def notes(results: dict[str, Any]) -> list[str]:
    """What else belongs under the tables."""
    efficiency = ", ".join(f"{NAMES[row['policy']]} {row['efficiency']:.2f}" for row in results["policies"])
    steps = results["policies"][0]["steps"]
    epoch = results["epoch"]
    shown = {row["policy"]: row["predicted_s"] for row in results["policies"]}
    balanced = results["policies"][-1]
    planning = epoch["plan_s"] / (balanced["critical_s"] / balanced["steps"])
    return [
        *(f"{NAMES[row['policy']]}: {MEANINGS[row['policy']]}" for row in results["policies"]),
        f"{steps} paired steps on {results['ranks']} ranks; in brackets 95 % intervals, bootstrap over steps",
        f"efficiency (mean / slowest rank, CPU time): {efficiency}",
        f"predicted for these steps: {predicted_ratios(shown)}",
        f"predicted for all {epoch['steps']} steps of the epoch: {predicted_ratios(epoch['seconds'])}",
        f"planning a step takes {epoch['plan_s'] * 1e3:.2f} ms, {planning:.2%} of it (CPU time)",
    ]


def predicted_ratios(seconds: dict[str, float]) -> str:
    """What the cost model alone says; seconds: of each policy, on the same steps."""
    over = {policy: seconds[policy] / seconds["balanced"] for policy in ("padded", "packed")}
    return f"evenload over padded {over['padded']:.2f}, over packed {over['packed']:.2f} times as fast"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = "| --- |" + " ---: |" * (len(header) - 1)
    return ["| " + " | ".join(header) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows)]


def markdown(results: dict[str, Any]) -> str:
    """The tables as the README shows them."""
    lines = [
        *markdown_table(POLICY_HEADER, policy_rows(results)),
        "",
        *markdown_table(ratio_header(), ratio_rows(results)),
        "",
        *(f"- {line}" for line in notes(results)),
    ]
    return "\n".join(lines)


def replace_between(text: str, tables: str) -> str:
    """``text`` with ``tables`` between its markers. Raises ValueError where they are missing."""
    before, opening, rest = text.partition(MARKERS[0])
    _, closing, after = rest.partition(MARKERS[1])
    if not opening or not closing:
        raise ValueError(f"the text must have the lines {MARKERS[0]} and {MARKERS[1]}, one after the other")
    return f"{before}{opening}\n\n{tables}\n\n{closing}{after}"


def print_results(results: dict[str, Any], console: Console | None = None) -> None:
    """The same on a terminal, with the loss curves."""
    console = console or Console(highlight=False, soft_wrap=True)
    for header, rows in (
        (POLICY_HEADER, policy_rows(results)),
        (ratio_header(), ratio_rows(results)),
        (loss_header(results), loss_rows(results)),
    ):
        table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for line in notes(results):
        console.print(line)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="?", default=Path("demo/results.json"))
    parser.add_argument("--into", type=Path, help="replace the table between this file's markers")
    arguments = parser.parse_args()
    tables = markdown(json.loads(arguments.results.read_text()))
    if arguments.into is None:
        print(tables)
    else:
        arguments.into.write_text(replace_between(arguments.into.read_text(), tables))
