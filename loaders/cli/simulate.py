"""`evenload simulate`: what steps would take on a cluster with its jitter, stragglers and stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loaders.cli.options import (
    AsJson,
    Column,
    CostOrModel,
    CpDegrees,
    DrawnSeed,
    Files,
    Gpu,
    LengthColumn,
    MaxTokens,
    Overhead,
    PipelineStages,
    Policies,
    Ranks,
    RanksPerNode,
    Sync,
    TensorParallel,
)

if TYPE_CHECKING:
    from rich.console import Console

    from balancer.simulation import ModelFlops, SimulatedPolicy
    from loaders.cli.lengths import FileLengths


def simulate(
    files: Files,
    ranks: Ranks,
    max_tokens: MaxTokens,
    cp_degrees: CpDegrees = "1",
    sync: Sync = "step",
    cost: CostOrModel = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="The model's config.json, for its FLOPs and MFU, its cost where --cost gives none, and its "
            "communication where that was measured on one rank."
        ),
    ] = None,
    gpu: Gpu = "h100",
    tensor_parallel: TensorParallel = 1,
    steps: Annotated[int, typer.Option(min=1, help="Steps to simulate, over as many epochs as needed.")] = 20,
    global_batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples a step; by default all, at most 65536.")
    ] = None,
    ranks_per_node: RanksPerNode = None,
    pipeline_stages: PipelineStages = 1,
    stage_multipliers: Annotated[
        str | None, typer.Option(help="Time of each stage over that of the cost, such as 1,1,1.2.")
    ] = None,
    jitter: Annotated[
        float, typer.Option(min=0.0, max=10.0, help="Spread of the GPUs' paces, such as 0.05.")
    ] = 0.0,
    straggler: Annotated[
        list[str] | None, typer.Option(help="RANK:SPEED that the planner does not know of, such as 17:0.5.")
    ] = None,
    overhead: Overhead = 0.0,
    policies: Policies = None,
    column: Column = "input_ids",
    length: LengthColumn = None,
    seed: DrawnSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Run the planner's plans of a file's lengths on a simulated cluster, for every policy.

    Example: evenload simulate corpus.parquet --ranks 1024 --max-tokens 16Ki --jitter 0.03 --straggler 17:0.7
    """
    from rich.console import Console

    from balancer.simulation.run import LARGEST_STEP
    from balancer.topology import Topology
    from loaders.cli import plan_report, simulate_report
    from loaders.cli.costs import cost_model
    from loaders.cli.errors import EXPECTED, report
    from loaders.cli.numbers import parse_amount
    from loaders.cli.plan import check_sync, parse_degrees, parse_policies

    console = Console(stderr=as_json)
    try:
        check_sync(sync)
        degrees, capacity = parse_degrees(cp_degrees), parse_amount(max_tokens, "--max-tokens")
        topology = Topology(ranks=ranks, ranks_per_node=ranks_per_node, pipeline_stages=pipeline_stages)
        flops = _flops(model, gpu, tensor_parallel)
        priced = cost_model(
            cost, model, gpu, cp_degrees=degrees, topology=topology, tensor_parallel=tensor_parallel
        )
        cluster = {
            "jitter": jitter,
            "stragglers": parse_stragglers(straggler or []),
            "stage_multipliers": _parse_multipliers(stage_multipliers),
            "overhead_s": overhead,
        }
        lengths, admitted, outcomes = _run(
            console,
            (files, column, length),
            (topology, capacity, degrees),
            cost=priced,
            policies=None if policies is None else parse_policies(policies),
            steps=steps,
            global_batch_size=global_batch_size,
            sync=sync,
            flops=flops,
            seed=seed,
            **cluster,
        )
    except EXPECTED as error:
        report(error)
        raise typer.Exit(1) from error
    batch = min(global_batch_size or LARGEST_STEP, max(admitted.lengths.size, 1))
    setting = plan_report.Setting(
        files=files,
        lengths_from=lengths.kind,
        ranks=ranks,
        max_tokens=capacity,
        cp_degrees=degrees,
        sync=sync,
        global_batch_size=batch,
        steps_in_epoch=-(-admitted.lengths.size // batch),
    )
    simulated = simulate_report.Report(setting, priced, admitted, cluster, pipeline_stages, outcomes)
    if as_json:
        typer.echo(json.dumps(simulated.as_json(), indent=2))
    else:
        simulated.show(console)
    if outcomes and all(outcome.error for outcome in outcomes):
        raise typer.Exit(1)


def parse_stragglers(texts: list[str]) -> dict[int, float]:
    """Speeds by rank from ``17:0.5``. Raises ValueError."""
    try:
        pairs = [(int(rank), float(speed)) for rank, speed in (text.split(":") for text in texts)]
    except ValueError:
        raise ValueError(f"--straggler must be RANK:SPEED such as 17:0.5, got {', '.join(texts)}.") from None
    speeds = dict(pairs)
    if len(speeds) < len(pairs):
        raise ValueError(f"--straggler must name each rank once, got {', '.join(texts)}.")
    return speeds


def _parse_multipliers(text: str | None) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--stage-multipliers must be numbers such as 1,1,1.2, got {text!r}.") from None


def _flops(model: Path | None, gpu: str, tensor_parallel: int) -> ModelFlops | None:
    """The FLOPs of a token, where a model is given."""
    from balancer.simulation import ModelFlops
    from loaders.cli.costs import parse_gpu, read_config, told_of

    device = parse_gpu(gpu)
    if model is None:
        return None
    config = read_config(model)
    with told_of(model):
        flops: ModelFlops = ModelFlops.from_config(config, device, tensor_parallel=tensor_parallel)
    return flops


def _run(
    console: Console,
    source: tuple[list[str], str, str | None],
    memory: tuple[Any, int, tuple[int, ...]],
    *,
    policies: list[str] | None,
    steps: int,
    **options: Any,
) -> tuple[FileLengths, Any, tuple[SimulatedPolicy, ...]]:
    """(lengths read, samples admitted, columns of each policy), with progress where somebody is watching."""
    from rich.progress import Progress

    from balancer import POLICIES
    from balancer.simulation import simulate as run
    from loaders.cli.lengths import read_lengths
    from loaders.cli.plan_report import admit

    files, column, length = source
    topology, max_tokens, cp_degrees = memory
    with Progress(console=console, transient=True) as bar:
        reading = bar.add_task("reading lengths", total=None)
        lengths = read_lengths(files, column=column, length=length)
        admitted = admit(lengths, topology=topology, max_tokens=max_tokens, cp_degrees=cp_degrees)
        bar.remove_task(reading)
        tasks = {name: bar.add_task(name, total=steps) for name in policies or POLICIES}
        outcomes = run(
            admitted.lengths,
            topology=topology,
            max_tokens=max_tokens,
            cp_degrees=cp_degrees,
            policies=policies,
            steps=steps,
            progress=lambda name, done: bar.update(tasks[name], completed=done),
            **options,
        )
    return lengths, admitted, outcomes
