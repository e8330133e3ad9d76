"""`evenload inspect`: what a loader would do with the data, before any of it is read."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loaders.cli.options import (
    CostOrModel,
    CpDegrees,
    Gpu,
    MaxTokens,
    ModelCost,
    OrderSeed,
    Ranks,
    RanksPerNode,
    Sync,
)

if TYPE_CHECKING:
    from rich.console import Console

YAML = (".yaml", ".yml")
COLUMN = "input_ids"
MOST_ID = 2**31 - 1


def inspect_data(
    data: Annotated[
        list[str], typer.Argument(help="A mixture's YAML file, or paths, patterns or URLs of one source.")
    ],
    max_tokens: MaxTokens,
    ranks: Ranks = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples a rank and step.")] = 64,
    global_batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples a step, whatever the ranks.")
    ] = None,
    cp_degrees: CpDegrees = "1",
    sync: Sync = "step",
    cost: CostOrModel = None,
    model: ModelCost = None,
    gpu: Gpu = "h100",
    ranks_per_node: RanksPerNode = None,
    max_samples: Annotated[
        int | None, typer.Option(min=1, help="Samples that a micro-batch may hold.")
    ] = None,
    oversize: Annotated[
        str, typer.Option(help="Samples that fit nowhere: error, drop, truncate or split.")
    ] = "error",
    shuffle: Annotated[bool, typer.Option("--shuffle/--no-shuffle", help="Shuffle the order.")] = True,
    seed: OrderSeed = 0,
    bos: Annotated[
        int | None, typer.Option(min=0, max=MOST_ID, help="Token that every sample begins with.")
    ] = None,
    eos: Annotated[
        int | None, typer.Option(min=0, max=MOST_ID, help="Token that every sample ends with.")
    ] = None,
    column: Annotated[str, typer.Option(help="Column of token ids of a source.")] = COLUMN,
    length: Annotated[str | None, typer.Option(help="Column of lengths of a source.")] = None,
    steps: Annotated[int, typer.Option(min=0, help="First steps to show.")] = 2,
    worst: Annotated[
        int, typer.Option(min=0, help="Heaviest micro-batches of the epoch to show; plans all its steps.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Print sources, lengths, shares and the first steps' plans.

    Example: evenload inspect mixture.yaml --max-tokens 16Ki --ranks 8 --worst 3
    """
    from rich.console import Console

    from loaders.cli.errors import EXPECTED, report

    console = Console(stderr=as_json)
    try:
        from loaders.cli import inspect_report
        from loaders.planning.inspection import inspect_loader

        with _waiting(console, "reading lengths"):
            loader = _loader(
                _dataset(data, column, length),
                max_tokens=max_tokens,
                ranks=(ranks, ranks_per_node),
                cp_degrees=cp_degrees,
                cost=(cost, model, gpu),
                batch_size=batch_size,
                global_batch_size=global_batch_size,
                sync=sync,
                max_samples=max_samples,
                oversize=oversize,
                shuffle=shuffle,
                seed=seed,
                bos=bos,
                eos=eos,
            )
        with _waiting(console, "planning"):
            found = inspect_loader(loader, steps=steps, worst=worst)
    except EXPECTED as error:
        report(error)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps(inspect_report.as_json(found), indent=2))
    else:
        inspect_report.show(console, found)


def _dataset(data: list[str], column: str, length: str | None) -> Any:
    from loaders import Mixture, open_source

    mixtures = [one for one in data if one.lower().endswith(YAML)]
    if mixtures and len(data) > 1:
        raise ValueError(f"a mixture's file must be given alone, got {mixtures[0]} among {len(data)} inputs.")
    if mixtures and (column != COLUMN or length is not None):
        raise ValueError(
            "--column and --length are of one source: write column: and length: beside each path of "
            f"{data[0]}."
        )
    if mixtures:
        return Mixture.from_yaml(data[0])
    return open_source(data[0] if len(data) == 1 else data, column=column, length=length)


def _loader(
    dataset: Any,
    *,
    max_tokens: str,
    ranks: tuple[int, int | None],
    cp_degrees: str,
    cost: tuple[str | None, Path | None, str],
    batch_size: int,
    global_batch_size: int | None,
    **options: Any,
) -> Any:
    from balancer import Topology
    from loaders import DataLoader
    from loaders.cli.costs import cost_model
    from loaders.cli.numbers import parse_amount
    from loaders.cli.plan import parse_degrees

    step: dict[str, Any] = {"batch_size": batch_size}
    if global_batch_size is not None:
        step = {"global_batch_size": global_batch_size}
    topology, degrees = Topology(ranks[0], ranks_per_node=ranks[1]), parse_degrees(cp_degrees)
    return DataLoader(
        dataset,
        max_tokens=parse_amount(max_tokens, "--max-tokens"),
        topology=topology,
        rank=0,
        cp_degrees=degrees,
        cost=cost_model(*cost, cp_degrees=degrees, topology=topology),
        **step,
        **options,
    )


def _waiting(console: Console, what: str) -> AbstractContextManager[Any]:
    """A spinner, where somebody is watching."""
    return console.status(what) if console.is_terminal else nullcontext()
