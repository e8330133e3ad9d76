"""``evenload status``: what the loaders on a Ray cluster do right now."""

from __future__ import annotations

import json
import sys
import time
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
) -> None:
    """Show actors, queues, bytes and tokens a second of running loaders with engine="ray"."""
    if every <= 0:
        raise typer.BadParameter(f"--every must be above 0 seconds, it is {every:g}")
    try:
        from loaders.ray_engine.cluster import connected
        from loaders.ray_engine.session import running_address
        from loaders.ray_engine.status import status
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise ImportError("evenload status needs Ray: pip install 'evenload[ray]'") from None
    with connected(running_address(address)):
        while True:
            found = status()
            _print(found, as_json=as_json, clear=watch)
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
