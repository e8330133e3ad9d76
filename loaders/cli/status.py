"""``evenload status``: what the loaders on a Ray cluster do right now."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer


def status_command(
    address: Annotated[
        str | None,
        typer.Option(help="Of the Ray cluster; default: RAY_ADDRESS, else this machine's."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks under --watch.")] = 2.0,
    timeline: Annotated[
        Path | None, typer.Option(help="Instead write the latest reads, builds and waits here, for Perfetto.")
    ] = None,
) -> None:
    """Show actors, queues, bytes and tokens a second of running loaders with engine="ray"."""
    if not every > 0:
        raise typer.BadParameter(f"--every must be above 0 seconds, it is {every:g}")
    if timeline is not None and (as_json or watch):
        raise typer.BadParameter("--timeline writes a file and shows nothing: leave --json and --watch out")
    try:
        from loaders.ray_engine.status import status, write_timeline
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise ImportError("evenload status needs Ray: pip install 'evenload[ray]'") from None
    from loaders.ray_engine.summary import summary

    if timeline is not None:
        spans = write_timeline(timeline, address)
        sys.stderr.write(f"{spans} spans written to {timeline}; open it at https://ui.perfetto.dev\n")
        return
    while True:
        _print(summary(status(address)), as_json=as_json, clear=watch)
        if not watch:
            return
        time.sleep(every)


def _print(found: dict[str, Any], *, as_json: bool, clear: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        return
    from rich.console import Console

    from loaders.cli.status_tables import tables

    console = Console()
    if clear and console.is_terminal:
        console.clear()
    for part in tables(found):
        console.print(part)
