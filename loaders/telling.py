"""A loader's metrics while it runs: a live line where someone watches, TensorBoard, Weights & Biases."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from loaders.batches.batch import Batch
from loaders.packing_job.progress import short

REFRESH_S = 0.25
"""Time between two states of the live line: a faster one cannot be read."""


def watched(
    loader: Any, *, writers: Sequence[Any] = (), every: int = 10, console: Console | None = None
) -> Iterator[Batch]:
    """Pass the batches of a `DataLoader` with ``max_tokens`` through and tell how it goes.

    Rank 0 tells, all others are silent. Without a terminal there is no live line.

    Args:
        loader: a `DataLoader`.
        writers: anything with ``add_scalar(name, value, step)``, as TensorBoard's ``SummaryWriter`` has it,
            or ``log(numbers, step=...)``, as a run of Weights & Biases has it.
        every: steps between two messages to the writers.
        console: where the live line goes; by default the standard error stream.

    Raises:
        TypeError: a writer that has neither method.
    """
    if every < 1:
        raise ValueError(f"every must be a whole number of steps of at least 1, got {every!r}.")
    for writer in writers:
        if not hasattr(writer, "add_scalar") and not hasattr(writer, "log"):
            raise TypeError(
                "a writer must have add_scalar(name, value, step) or log(numbers, step=...), "
                f"{type(writer).__name__} has neither."
            )
    return (
        _told(loader, writers, every, console or Console(stderr=True)) if loader.rank == 0 else iter(loader)
    )


def _told(loader: Any, writers: Sequence[Any], every: int, console: Console) -> Iterator[Batch]:
    before, began = loader.metrics(), time.perf_counter()
    with ExitStack() as stack:
        live, shown = None, -REFRESH_S
        if console.is_terminal:  # without a thread of its own, since workers may be forked under it
            live = stack.enter_context(Live(console=console, transient=True, auto_refresh=False))
        for batch in loader:
            yield batch
            if not batch.last_in_step:
                continue
            report = loader.metrics()
            seconds = time.perf_counter() - began
            if live is not None and seconds - shown >= REFRESH_S:
                shown = seconds
                live.update(Text(line_of(report, before, seconds, batch.step)), refresh=True)
            if (batch.step + 1) % every == 0:
                for writer in writers:
                    write(writer, numbers_of(report), batch.step)


def line_of(report: Mapping[str, Any], before: Mapping[str, Any], seconds: float, step: int) -> str:
    """One line on a loader: rates since ``before``, means over all steps."""
    seconds = max(seconds, 1e-9)
    parts = [
        f"step {step}",
        f"{short((report['tokens'] - before['tokens']) / seconds)} tokens/s",
        f"fill {report['fill']:.1%}",
        f"imbalance {report['imbalance']:.3f}",
        f"waiting {min((report['wait_s'] - before['wait_s']) / seconds, 1.0):.1%}",
    ]
    if report["skipped"]:
        parts.append(f"skipped {report['skipped']}")
    return "  ".join(parts)


def numbers_of(report: Mapping[str, Any], prefix: str = "loader") -> dict[str, float]:
    """All numbers of a report by path: ``loader/fill``, ``loader/tokens_by_source/web``."""
    numbers: dict[str, float] = {}
    for name, value in report.items():
        path = f"{prefix}/{name}"
        if isinstance(value, Mapping):
            numbers |= numbers_of(value, path)
        elif isinstance(value, int | float):
            numbers[path] = value
    return numbers


def write(writer: Any, numbers: Mapping[str, float], step: int) -> None:
    """Hand numbers to a writer of either kind."""
    if hasattr(writer, "add_scalar"):
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
    else:
        writer.log(dict(numbers), step=step)
