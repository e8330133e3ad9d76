"""A bar with rate and time left where someone watches; a line a phase where nobody does."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

QUIET_S = 10.0
"""Without a terminal, a line at most every so often."""


class RateColumn(ProgressColumn):
    """Units a second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        """The rate so far."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{short(speed)} {self.unit}/s")


def short(number: float) -> str:
    """Three digits and a unit: ``12.3M``."""
    for unit in ("", "k", "M", "G"):
        if abs(number) < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}T"


def tracked(
    console: Console, description: str, amounts: Iterable[int], total: int, unit: str, done: int = 0
) -> Iterator[int]:
    """Pass ``amounts`` through and show how much of ``total`` they make up."""
    if not console.is_terminal:
        yield from _told(console, description, amounts, total, unit, done)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        RateColumn(unit),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(description, total=max(total, 1), completed=done)
        for amount in amounts:
            progress.advance(bar, amount)
            yield amount
        progress.update(bar, completed=max(total, 1))


def _told(
    console: Console, description: str, amounts: Iterable[int], total: int, unit: str, done: int
) -> Iterator[int]:
    begin = last = time.monotonic()
    so_far = 0
    console.print(f"{description}: {short(total)} {unit}" + (f", {short(done)} done before" if done else ""))
    for amount in amounts:
        so_far += amount
        now = time.monotonic()
        if now - last > QUIET_S:
            rate = so_far / (now - begin)
            left = max(total - done - so_far, 0) / rate if rate else 0.0
            share = (done + so_far) / max(total, 1)
            console.print(f"{description}: {share:.0%}, {short(rate)} {unit}/s, {left:.0f} s left")
            last = now
        yield amount
