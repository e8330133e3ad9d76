"""The run in a terminal: what came in, what went out, what it would be otherwise."""

from __future__ import annotations

from itertools import islice
from typing import Any

from rich.console import Console
from rich.table import Table

COUNTED = (
    "rows",
    "kept",
    "dropped",
    "truncated",
    "split",
    "unlabelled",
    "masked",
    "empty",
    "null",
    "rejected",
    "tokens",
    "kept_tokens",
)
MOST_INPUTS = 20
"""Inputs shown one by one; a pattern that the shell has expanded can name thousands."""
ALWAYS = ("rows", "kept", "tokens", "kept_tokens")


def print_summary(console: Console, manifest: dict[str, Any], place: str) -> None:
    """The counts by input, the packs, and the other strategies."""
    console.print(counts_table(manifest))
    console.print(strategies_table(manifest))
    over = manifest["num_packs"] - manifest["lower_bound"]
    console.print(
        f"{manifest['num_packs']:,} packs of {manifest['max_tokens']:,} tokens, fill {manifest['fill']:.2%}; "
        + against_bound(manifest["lower_bound"], over),
        highlight=False,
    )
    counts = manifest["counts"]
    if counts["unlabelled"]:
        console.print(
            f"{counts['unlabelled']:,} samples dropped because truncation would cut off all their labels: "
            "raise --max-tokens, use --oversize truncate_left, or keep them with --keep-unlabelled"
        )
    if counts["rejected"]:
        console.print(
            f"{counts['rejected']:,} rows could not be used; they are listed in {place}/rejects.jsonl"
        )


def against_bound(bound: int, over: int) -> str:
    """How many packs more than what is proven to be needed."""
    if not over:
        return "no packing has fewer"
    return f"{over:,} more than {bound:,}, below which no packing can go"


def counts_table(manifest: dict[str, Any]) -> Table:
    """Rows and tokens by input; columns that are zero everywhere are left out."""
    totals = manifest["counts"]
    shown = [name for name in COUNTED if name in ALWAYS or totals.get(name)]
    # a terminal of 80 columns has room for all numbers and enough of a name to tell inputs apart
    table = Table(title=f"max_tokens {manifest['max_tokens']:,}", padding=0)
    table.add_column("input", overflow="fold", min_width=12)
    for name in [*shown, "p50", "p99", "max"]:
        table.add_column(name.replace("_", " "), justify="right", no_wrap=True)
    accounts = manifest["by_source"]
    for name, account in islice(accounts.items(), MOST_INPUTS):
        lengths = [f"{account['lengths'].get(key, 0):,}" for key in ("p50", "p99", "max")]
        table.add_row(name, *(f"{account[key]:,}" for key in shown), *lengths)
    if len(accounts) > MOST_INPUTS:
        table.add_row(f"... and {len(accounts) - MOST_INPUTS} more, see manifest.json")
    if len(accounts) > 1:
        table.add_row("all", *(f"{totals[key]:,}" for key in shown), "", "", "", style="bold")
    return table


def strategies_table(manifest: dict[str, Any]) -> Table:
    """Packs and fill of each way to fill rows; the one chosen as it came out, window after window."""
    table = Table("way", title="what each way would take")
    table.add_column("packs", justify="right")
    table.add_column("fill", justify="right")
    for name, found in manifest["strategies"].items():
        table.add_row(name, f"{found['packs']:,}", f"{found['fill']:.2%}")
    table.add_row(
        f"this run ({manifest['strategy']})",
        f"{manifest['num_packs']:,}",
        f"{manifest['fill']:.2%}",
        style="bold",
    )
    return table
