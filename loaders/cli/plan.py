"""`evenload plan`: what each policy would cost on a file's lengths, before any GPU is booked."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loaders.cli.options import (
    AsJson,
    Column,
    CostOrModel,
    CpDegrees,
    Files,
    Gpu,
    LengthColumn,
    MaxTokens,
    ModelCost,
    OrderSeed,
    PipelineStages,
    Policies,
    Ranks,
    RanksPerNode,
    Sync,
)
from loaders.cli.outputs import PICTURES, check_output

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from balancer.comparison import PolicyOutcome

_WHOLE_FILE = 65_536


def plan(
    files: Files,
    ranks: Ranks,
    max_tokens: MaxTokens,
    cp_degrees: CpDegrees = "1",
    sync: Sync = "step",
    cost: CostOrModel = None,
    model: ModelCost = None,
    gpu: Gpu = "h100",
    global_batch_size: Annotated[
        int | None, typer.Option(min=1, help=f"Samples a step; by default all, at most {_WHOLE_FILE}.")
    ] = None,
    max_steps: Annotated[int, typer.Option(min=1, help="Plan at most so many steps of the epoch.")] = 20,
    ranks_per_node: RanksPerNode = None,
    pipeline_stages: PipelineStages = 1,
    policies: Policies = None,
    column: Column = "input_ids",
    length: LengthColumn = None,
    seed: OrderSeed = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw the balanced plan of the first step.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write it as a timeline for Perfetto.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print what each policy would cost on a file's lengths, against a proven bound.

    Example: evenload plan corpus.parquet --ranks 64 --max-tokens 16384 --cp-degrees 1,2,4,8
    """
    from rich.console import Console

    from balancer.topology import Topology
    from loaders.cli import plan_report
    from loaders.cli.costs import cost_model
    from loaders.cli.errors import EXPECTED, report
    from loaders.cli.lengths import read_lengths
    from loaders.cli.numbers import parse_amount

    check_output(plot, "--plot", PICTURES)
    check_output(trace, "--trace")
    console = Console(stderr=as_json)
    try:
        check_sync(sync)
        degrees, capacity = parse_degrees(cp_degrees), parse_amount(max_tokens, "--max-tokens")
        topology = Topology(ranks=ranks, ranks_per_node=ranks_per_node, pipeline_stages=pipeline_stages)
        priced = cost_model(cost, model, gpu, cp_degrees=degrees, topology=topology)
        with _waiting(console, "reading lengths"):
            lengths = read_lengths(files, column=column, length=length)
        admitted = plan_report.admit(lengths, topology=topology, max_tokens=capacity, cp_degrees=degrees)
        batch = min(global_batch_size or _WHOLE_FILE, max(admitted.lengths.size, 1))
        outcomes, steps_in_epoch = _compare(
            console,
            admitted.lengths,
            policies,
            (batch, max_steps, seed),
            topology=topology,
            max_tokens=capacity,
            cost=priced,
            cp_degrees=degrees,
            sync=sync,
            seed=seed,
        )
    except EXPECTED as error:
        report(error)
        raise typer.Exit(1) from error
    setting = plan_report.Setting(
        files=files,
        lengths_from=lengths.kind,
        ranks=ranks,
        max_tokens=capacity,
        cp_degrees=degrees,
        sync=sync,
        global_batch_size=batch,
        steps_in_epoch=steps_in_epoch,
    )
    if as_json:
        typer.echo(json.dumps(plan_report.as_json(setting, priced, admitted, outcomes), indent=2))
    else:
        plan_report.show(console, setting, priced, admitted, outcomes)
    try:
        _draw(outcomes, plot, trace)
    except EXPECTED as error:
        report(error)
        raise typer.Exit(1) from error
    if outcomes and all(outcome.error for outcome in outcomes):
        raise typer.Exit(1)


def _waiting(console: Console, what: str) -> AbstractContextManager[Any]:
    """A spinner, where somebody is watching."""
    return console.status(what) if console.is_terminal else nullcontext()


def check_sync(sync: str) -> None:
    """Raises ValueError."""
    from balancer.planning.problem import SYNC_MODES
    from packing.checks import check_choice

    check_choice("--sync", sync, SYNC_MODES)


def parse_degrees(text: str) -> tuple[int, ...]:
    """CP degrees from ``1,2,4``. Raises ValueError."""
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise ValueError(f"--cp-degrees must be whole numbers such as 1,2,4,8, got {text!r}.") from None


def parse_policies(text: str) -> list[str]:
    """Policies by name, each once, comma-separated. Raises ValueError."""
    from balancer import POLICIES
    from packing.checks import check_choice

    names = [name.strip() for name in text.split(",")]
    for name in names:
        check_choice("each of --policies", name, POLICIES)
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise ValueError(f"--policies must name each policy once, {twice} is there twice.")
    return names


def _compare(
    console: Console,
    lengths: NDArray[np.int64],
    policies: str | None,
    epoch: tuple[int, int, int],
    **options: Any,
) -> tuple[list[PolicyOutcome], int]:
    """(outcome of each policy, steps in the epoch). epoch: (samples a step, steps to plan, seed)."""
    from rich.progress import Progress

    from balancer import POLICIES
    from balancer.comparison import compare_policies, shuffled_steps

    batch, max_steps, seed = epoch
    names = list(POLICIES) if policies is None else parse_policies(policies)
    steps = shuffled_steps(lengths.size, batch, seed=seed)
    planned = steps[:max_steps]
    with Progress(console=console, transient=True) as bar:
        tasks = {name: bar.add_task(name, total=len(planned)) for name in names}

        def show(name: str, done: int) -> None:
            bar.update(tasks[name], completed=done)

        return compare_policies(lengths, planned, names, progress=show, **options), len(steps)


def _draw(outcomes: list[PolicyOutcome], plot: Path | None, trace: Path | None) -> None:
    drawn = [outcome.first_plan for outcome in outcomes if outcome.first_plan is not None]
    balanced = [plan for plan in drawn if plan.policy == "balanced"] or drawn
    if balanced and plot is not None:
        _write_whole(plot, balanced[0].plot)
    if balanced and trace is not None:
        _write_whole(trace, balanced[0].trace)


def _write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file at once. ``write`` takes its format from the suffix, so a name of its own keeps that."""
    from loaders.packing_job.atomic import whole_file

    with whole_file(path) as partial:
        drawn = partial.with_name(partial.name + path.suffix)
        try:
            write(drawn)
            drawn.replace(partial)
        finally:
            drawn.unlink(missing_ok=True)
