"""`evenload report`: one page on what a user's own data would gain, before any GPU is booked."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loaders.cli.options import (
    Column,
    CostOrModel,
    DrawnSeed,
    Files,
    Gpu,
    LengthColumn,
    Overhead,
    PipelineStages,
    Ranks,
    TensorParallel,
)
from loaders.cli.outputs import check_output

if TYPE_CHECKING:
    from rich.console import Console

    from balancer.costs.memory import MemoryEstimate
    from balancer.simulation import ModelFlops
    from balancer.topology import Topology
    from loaders.cli.lengths import FileLengths
    from loaders.reporting.report import Report

_GPUS_A_NODE = 8


def report(
    files: Files,
    ranks: Ranks,
    max_tokens: Annotated[str, typer.Option(help="Tokens that one rank holds in one micro-batch today.")],
    model: Annotated[
        Path | None, typer.Option(help="The model's config.json: its cost, MFU and memory.")
    ] = None,
    gpu: Gpu = "h100",
    cost: CostOrModel = None,
    cp_degrees: Annotated[
        str | None,
        typer.Option(
            help="Degrees to choose from, such as 1,2,4,8; by default powers of two up to a node, or up to "
            "what the longest sample needs, at most 64."
        ),
    ] = None,
    sync: Annotated[
        str | None,
        typer.Option(
            help="When ranks meet today: once a step, or in each micro_batch; by default step where memory "
            "holds whole weights and gradients."
        ),
    ] = None,
    global_batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples a step; by default 16 for each rank.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps to compare, over as many epochs as needed.")] = 40,
    search_steps: Annotated[int, typer.Option(min=1, help="Steps that each setting is tried on.")] = 8,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks joined by fast links; by default 8 GPUs, tensor parallel or not."),
    ] = None,
    tensor_parallel: TensorParallel = 1,
    pipeline_stages: PipelineStages = 1,
    recompute: Annotated[
        str | None,
        typer.Option(
            help="What backward computes again: none, attention or full; by default the least that fits."
        ),
    ] = None,
    gpu_memory: Annotated[str | None, typer.Option(help="Memory of a GPU, such as 80G.")] = None,
    jitter: Annotated[
        float, typer.Option(min=0.0, max=10.0, help="Spread of the GPUs' paces in each step.")
    ] = 0.03,
    overhead: Overhead = 0.0,
    column: Column = "input_ids",
    length: LengthColumn = None,
    seed: DrawnSeed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to write the page; by default report.html.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers as JSON; the page only where --out says.")
    ] = False,
) -> None:
    """Write one page on your data: lengths, what each policy costs, recommended settings, predicted gain.

    Example: evenload report corpus.parquet --ranks 64 --max-tokens 16Ki --model config.json --gpu h100
    """
    from rich.console import Console

    from loaders.cli.errors import EXPECTED
    from loaders.cli.errors import report as tell

    if out is not None or not as_json:
        check_output(out or Path("report.html"), "--out")
    console = Console(stderr=as_json)
    choices = {
        "model": model,
        "gpu": gpu,
        "cost": cost,
        "sync": sync,
        "recompute": recompute,
        "gpu_memory": gpu_memory,
        "tensor_parallel": tensor_parallel,
    }
    run = {
        "global_batch_size": global_batch_size,
        "steps": steps,
        "search_steps": search_steps,
        "jitter": jitter,
        "overhead_s": overhead,
        "seed": seed,
    }
    try:
        from balancer.topology import Topology

        topology = Topology(
            ranks=ranks,
            ranks_per_node=ranks_per_node or max(1, _GPUS_A_NODE // tensor_parallel),
            pipeline_stages=pipeline_stages,
        )
        found = _gather(console, (files, column, length), topology, (max_tokens, cp_degrees), choices, run)
    except EXPECTED as error:
        tell(error)
        raise typer.Exit(1) from error
    if as_json:
        from loaders.reporting.report import as_json as plain

        typer.echo(json.dumps(plain(found), indent=2))
    if out is not None or not as_json:
        _write(console, found, out or Path("report.html"))


def _gather(
    console: Console,
    source: tuple[list[str], str, str | None],
    topology: Topology,
    caps: tuple[str, str | None],
    choices: dict[str, Any],
    run: dict[str, Any],
) -> Report:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from loaders.cli.costs import parse_gpu
    from loaders.cli.lengths import read_lengths
    from loaders.cli.numbers import parse_amount
    from loaders.cli.plan import parse_degrees
    from loaders.cli.plan_report import admit
    from loaders.reporting.question import SAMPLES_A_RANK, Question, Setting, default_degrees
    from loaders.reporting.report import gather
    from loaders.reporting.snippet import source_code

    files, column, length = source
    capacity = parse_amount(caps[0], "--max-tokens")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        reading = bar.add_task("reading lengths", total=None)
        lengths: FileLengths = read_lengths(files, column=column, length=length)
        bar.remove_task(reading)
        longest = int(lengths.tokens.max(initial=1))
        degrees = (
            default_degrees(longest, max_tokens=capacity, topology=topology)
            if caps[1] is None
            else parse_degrees(caps[1])
        )
        modelled = _model(choices, topology, capacity, degrees)
        given = Setting(capacity, degrees, modelled.pop("sync"))
        admitted = admit(lengths, topology=topology, max_tokens=capacity, cp_degrees=degrees)
        batch = run.pop("global_batch_size") or SAMPLES_A_RANK * topology.ranks
        question = Question(
            files=tuple(files),
            topology=topology,
            given=given,
            global_batch_size=min(batch, max(admitted.lengths.size, 1)),
            gpu=parse_gpu(choices["gpu"]).name,
            tensor_parallel=choices["tensor_parallel"],
            source_code=source_code(files, lengths.kind, column=column, length=length),
            **modelled,
            **run,
        )
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        return gather(question, admitted, lengths.kind, show)


def _model(
    choices: dict[str, Any], topology: Topology, max_tokens: int, cp_degrees: tuple[int, ...]
) -> dict[str, Any]:
    """Cost, FLOPs, memory, what is computed again, and when ranks meet, as far as a model says."""
    from balancer.costs.config import RECOMPUTE
    from balancer.costs.gpus import GPUS
    from balancer.planning.problem import SYNC_MODES
    from balancer.simulation import ModelFlops
    from loaders.cli.costs import cost_model, measured_alone, parse_cost, parse_gpu, read_config, told_of
    from loaders.reporting.snippet import cost_code
    from packing.checks import check_choice

    cost, recompute, sync = choices["cost"], choices["recompute"], choices["sync"]
    for name, given, known in (("recompute", recompute, RECOMPUTE), ("sync", sync, SYNC_MODES)):
        if given is not None:
            check_choice(f"--{name}", given, known)
    model, gpu, tensor_parallel = choices["model"], choices["gpu"], choices["tensor_parallel"]
    device = parse_gpu(gpu)
    setting: dict[str, Any] = {"cp_degrees": cp_degrees, "topology": topology}
    if model is None:
        for name in ("recompute", "gpu_memory"):
            if choices[name] is not None:
                option = name.replace("_", "-")
                raise ValueError(f"--{option} only has an effect with --model, whose memory it is about.")
        return {
            "cost": cost_model(cost, None, gpu, **setting),
            "cost_code": cost_code(cost, None, gpu),
            "sync": sync or "step",
        }
    config = read_config(model)
    with told_of(model):
        memory, again, meet = _memory(config, choices, topology, max_tokens)
        flops: ModelFlops = ModelFlops.from_config(config, device, tensor_parallel=tensor_parallel)
    shape = {"recompute": again, "tensor_parallel": tensor_parallel}
    return {
        "cost": cost_model(cost, model, gpu, **shape, **setting),
        "cost_code": cost_code(
            cost,
            model,
            device.name if device.name in GPUS else asdict(device),
            communication=cost is not None and max(cp_degrees) > 1 and measured_alone(parse_cost(cost)),
            **shape,
            pipeline_stages=topology.pipeline_stages,
            ranks_per_node=topology.ranks_per_node,
        ),
        "flops": flops,
        "memory": memory,
        "recompute": again,
        "sync": meet,
        "model": str(config.get("_name_or_path") or config.get("model_type") or model.stem),
    }


def _memory(
    config: dict[str, Any], choices: dict[str, Any], topology: Topology, max_tokens: int
) -> tuple[MemoryEstimate | None, str, str]:
    """(estimate, what is computed again, when ranks meet): the fastest that holds the given cap.

    What the user names is kept. Where nothing holds it, the last choice is: all computed again, all shared.
    """
    from balancer.costs.memory import estimate_memory
    from loaders.cli.costs import parse_gpu
    from loaders.cli.numbers import parse_amount

    amount = choices["gpu_memory"]
    held = None if amount is None else float(parse_amount(amount, "--gpu-memory"))
    if held == 0.0:
        raise ValueError("--gpu-memory must be above 0, such as 80G.")
    recomputes = [choices["recompute"]] if choices["recompute"] else ["none", "full"]
    syncs = [choices["sync"]] if choices["sync"] else ["step", "micro_batch"]
    memory, again, meet = None, recomputes[0], syncs[0]
    for again in recomputes:
        memory = estimate_memory(
            config,
            parse_gpu(choices["gpu"]),
            gpu_bytes=held,
            recompute=again,
            tensor_parallel=choices["tensor_parallel"],
            pipeline_stages=topology.pipeline_stages,
        )
        if memory is None:
            return None, recomputes[0], syncs[0]
        for meet in syncs:
            if memory.max_tokens(meet, topology.ranks) >= max_tokens:
                return memory, again, meet
    return memory, again, meet


def _write(console: Console, found: Report, path: Path) -> None:
    from loaders.packing_job.atomic import whole_file
    from loaders.reporting.headline import headline
    from loaders.reporting.page import page
    from loaders.reporting.words import many

    with whole_file(path) as partial:
        partial.write_text(page(found), encoding="utf-8")
    console.print(headline(found), highlight=False, markup=False)
    console.print(f"recommended: {found.recommended.setting}", highlight=False, markup=False)
    if found.profile.refused:
        console.print(
            f"{many(found.profile.refused, 'sample')} cannot fit, left out; the page tells which.",
            highlight=False,
        )
    console.print(f"page: {path}", highlight=False, markup=False)
