"""Options that several commands have, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Files = Annotated[
    list[str], typer.Argument(help="Lengths (.npy, .txt or a column), or tokens in any format.")
]
Ranks = Annotated[int, typer.Option(min=1, help="Data ranks.")]
MaxTokens = Annotated[str, typer.Option(help="Tokens that one rank holds in one micro-batch.")]
CpDegrees = Annotated[str, typer.Option(help="Allowed context-parallel degrees, such as 1,2,4,8.")]
Sync = Annotated[str, typer.Option(help="Ranks meet once a step, or in each micro_batch.")]
CostOrModel = Annotated[
    str | None,
    typer.Option(
        help="A preset, a file of evenload calibrate, or linear,quadratic,fixed seconds; by default what "
        "--model says, or the generic decoder."
    ),
]
ModelCost = Annotated[
    Path | None,
    typer.Option(
        help="The model's config.json: its cost where --cost gives none, its communication where that was "
        "measured on one rank."
    ),
]
Gpu = Annotated[
    str,
    typer.Option(
        help="a100, h100, h200, b200, mi300x, or numbers: peak FLOP/s, or FLOP/s,bytes/s in a node,bytes/s "
        "between nodes."
    ),
]
RanksPerNode = Annotated[int | None, typer.Option(min=1, help="Ranks joined by fast links.")]
TensorParallel = Annotated[int, typer.Option(min=1, help="GPUs that share each layer of a rank.")]
PipelineStages = Annotated[int, typer.Option(min=1, max=1024, help="Stages that every micro-batch passes.")]
Policies = Annotated[str | None, typer.Option(help="Which to compare; by default all.")]
Overhead = Annotated[float, typer.Option(min=0.0, help="Seconds added to every step.")]
Column = Annotated[str, typer.Option(help="Column of token ids.")]
LengthColumn = Annotated[str | None, typer.Option(help="Column of lengths.")]
OrderSeed = Annotated[int, typer.Option(min=0, help="Order of the samples.")]
DrawnSeed = Annotated[int, typer.Option(min=0, help="Order of the samples and jitter.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
