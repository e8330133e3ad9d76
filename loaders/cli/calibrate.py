"""`evenload calibrate`: measure a model on this machine, write its cost model."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loaders.cli.outputs import check_output

if TYPE_CHECKING:
    from rich.table import Table

    from loaders.calibrate import Calibration

_NOISY = 0.2
"""Median relative error from which on the caption says what may be wrong."""


def calibrate(
    model: Annotated[
        str, typer.Argument(help="module:function that returns the nn.Module to train (a class will do).")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the cost model.")] = Path(
        "cost.json"
    ),
    batch: Annotated[
        str | None,
        typer.Option(
            help="module:function (lengths, device) -> batch; by default random tokens, laid end to end."
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="module:function (model, batch) -> scalar; by default the model's loss or summed output."
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of the largest micro-batch.")] = 8192,
    max_length: Annotated[
        int | None, typer.Option(min=2, help="Longest sample; by default max-tokens.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Counted runs of each micro-batch.")] = 5,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="No further round begins after so many seconds.")
    ] = 120.0,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, ...; by default a GPU where there is one.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Cast the parameters, for instance to bfloat16.")] = None,
    attention: Annotated[
        str,
        typer.Option(
            help="Which pairs the model attends to: causal, full, window:512, '8*causal + 24*linear'."
        ),
    ] = "causal",
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="Count CPU time: for a machine that others share.")
    ] = False,
) -> None:
    """Measure a model's forward and backward on this machine and write its cost model as JSON.

    Example: evenload calibrate mymodel:build -o cost.json --max-tokens 16384
    """
    from rich.console import Console

    from balancer.costs.attention import parse_attention
    from loaders.packing_job.atomic import whole_file

    check_output(output, "--output")
    if max_length is not None and max_length > max_tokens:
        raise typer.BadParameter(
            f"--max-length must not exceed --max-tokens, it is {max_length} with {max_tokens} tokens."
        )
    try:
        parse_attention(attention)
    except ValueError as error:
        raise typer.BadParameter(f"--attention: {error}") from error
    console = Console()
    device = _checked_device(device) if device else _default_device()
    options: dict[str, Any] = {
        "device": device,
        "max_tokens": max_tokens,
        "max_length": max_length,
        "repeats": repeats,
        "budget_s": seconds,
        "attention": attention,
        "clock": time.process_time if cpu_time else time.perf_counter,
    }
    with on_path(os.getcwd()):  # while anything of the user's runs: it may import later than its module
        result = _measure((model, batch, loss), dtype, options)
    with whole_file(output) as partial:
        result.cost.save(partial)
    console.print(_summary(result))
    for lengths in result.too_large:
        console.print(f"{len(lengths)} x {max(lengths)} tokens did not fit the memory and was left out.")
    console.print(
        f"Wrote {output}. Use it with CostModel.load({str(output)!r}) or evenload plan --cost {output}."
    )


def _measure(names: tuple[str, str | None, str | None], dtype: str | None, options: Any) -> Calibration:
    """names: of the model, of what makes batches, of the loss."""
    from loaders.calibrate import calibrate as measure
    from loaders.calibrate import forward_loss

    model, batch, loss = names
    module = _build(model, dtype)
    make_batch = None if batch is None else load_function(batch)
    called = forward_loss if loss is None else load_function(loss)
    with _of_user(model, "on a batch", "Give --batch for other inputs and --loss for another call."):
        return _with_progress(
            lambda show: measure(module, make_batch=make_batch, loss=called, progress=show, **options)
        )


@contextmanager
def on_path(folder: str) -> Iterator[None]:
    """Look for modules in ``folder`` first, as Python does for a script beside them."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        # by value: the user's code may have put folders of its own in front
        if folder in sys.path:
            sys.path.remove(folder)


def load_function(name: str) -> Callable[..., Any]:
    """What ``module:name`` stands for.

    Raises:
        typer.BadParameter: no such module or name; says which.
        RuntimeError: the module's own code failed.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise typer.BadParameter(f"{name!r} must name a function as module:function.")
    try:
        with _of_user(module_name, "when it was imported", ""):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise typer.BadParameter(
            f"{name!r}: {error}. It is looked for in the current folder and on the path."
        ) from error
    function: Any = module
    for part in attribute.split("."):
        if not hasattr(function, part):
            raise typer.BadParameter(f"{module_name} has no {attribute!r}.")
        function = getattr(function, part)
    if not callable(function):
        raise typer.BadParameter(f"{name!r} is a {type(function).__name__} and cannot be called.")
    found: Callable[..., Any] = function
    return found


@contextmanager
def _of_user(name: str, when: str, way_out: str) -> Iterator[None]:
    """Tell a failure of the user's own code in a sentence."""
    from loaders.calibrate import UnfitModel

    try:
        yield
    except (RuntimeError, ModuleNotFoundError):  # torch's own and those of memory say what is wrong
        raise
    except UnfitModel as error:
        raise RuntimeError(f"{name}: {error}") from error
    except Exception as error:
        told = str(error).rstrip(".") or "without a message"
        raise RuntimeError(
            f"{name} failed {when}: {type(error).__name__}: {told}.{way_out and f' {way_out}'} "
            "EVENLOAD_TRACEBACK=1 shows where."
        ) from error


def _build(name: str, dtype: str | None) -> Any:
    import torch

    found: Any = load_function(name)
    # A module instance is callable too, and must not be run here.
    with _of_user(name, "when it was called without arguments", "It must return the nn.Module to train."):
        module = found if isinstance(found, torch.nn.Module) else found()
    if not isinstance(module, torch.nn.Module):
        raise typer.BadParameter(f"{name!r} returned a {type(module).__name__}, not a torch.nn.Module.")
    if dtype is None:
        return module
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise typer.BadParameter(f"--dtype {dtype!r} is not one of torch's, such as bfloat16.")
    return module.to(kind)


def _checked_device(name: str) -> str:
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch asserts where it was built without CUDA
        raise typer.BadParameter(f"--device {name} cannot be used: {str(error).splitlines()[0]}") from error
    return name


def _default_device() -> str:
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if accelerator is None else str(accelerator)


def _with_progress(run: Callable[[Callable[[int, int, str], None]], Calibration]) -> Calibration:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("measuring {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        return run(show)


def _summary(result: Calibration) -> Table:
    """The coefficients, and how well they describe each kind of micro-batch."""
    from rich.table import Table

    cost, fastest = result.cost, _fastest(result)
    coefficients = f"{cost.linear:.4g} s a token, {cost.quadratic:.4g} s an attended pair"
    table = Table(title=f"{cost.source}: {coefficients}, {cost.fixed:.4g} s a micro-batch")
    for name in ("samples", "longest", "tokens", "measured", "predicted", "error"):
        table.add_column(name, justify="right")
    for lengths, seconds in fastest.items():
        predicted = cost.fixed_s() + float(cost(lengths).sum())
        table.add_row(
            f"{len(lengths):,}",
            f"{max(lengths):,}",
            f"{sum(lengths):,}",
            f"{seconds * 1e3:.3f} ms",
            f"{predicted * 1e3:.3f} ms",
            f"{predicted / seconds - 1:+.1%}",
        )
    report = cost.report
    if report is not None:
        table.caption = f"median error {report.median_error:.1%}, largest {report.max_error:.1%}"
        if report.median_error > _NOISY:
            table.caption += (
                "\nThese times do not follow one cost: on a machine that others use, give --cpu-time or more "
                "--seconds; else see --attention"
            )
    return table


def _fastest(result: Calibration) -> dict[tuple[int, ...], float]:
    fastest: dict[tuple[int, ...], float] = {}
    for lengths, _, seconds in result.measurements:
        fastest[lengths] = min(seconds, fastest.get(lengths, seconds))
    return fastest
