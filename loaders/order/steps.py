"""Which samples an optimizer step has: a function of the order and a position, never of the world size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from loaders.catalog import Catalog, sample_table
from loaders.order.permutation import SampleOrder
from loaders.state import Cursor
from packing.table import SampleTable

WINDOW = 1024
"""Positions that are looked up at once, at most, to find where a step of so many tokens ends."""

AHEAD = 4096
"""Positions that are looked up at once for steps of a fixed size in a row: a call takes 25 us."""

StepTokens = int | Callable[[int], int]
"""Tokens of a step, or a function that gives them for a step's number."""


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """Samples of neighbouring positions of an epoch, one each."""

    epoch: int
    start: int
    stop: int
    table: SampleTable


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Steps:
    """The steps of each epoch.

    A step has ``samples`` samples, or as many as bring it to ``tokens`` tokens: it ends with the sample
    that reaches them, so a step is never empty. Pieces of a split sample stay together in its step.
    """

    order: SampleOrder
    catalogs: Sequence[Catalog]
    samples: int | None
    tokens: StepTokens | None
    drop_last: bool
    _ahead: list[_Window] = field(default_factory=list, init=False)
    """The window that was looked up last; another thread may look up others."""
    _usual: list[int] = field(default_factory=lambda: [WINDOW], init=False)
    """Positions that are likely to hold a step of so many tokens: more may be long rows, read in vain."""

    def members(self, cursor: Cursor) -> tuple[SampleTable, Cursor] | None:
        """Samples of the step at ``cursor`` and the cursor behind it; ``None`` at the end of the epoch.

        Cost: in proportion to the step's samples, wherever the cursor stands.
        """
        size = self.order.size(cursor.epoch)
        if cursor.position >= size:
            return None
        if self.samples is not None:
            end = cursor.position + self.samples
            if end > size and self.drop_last:
                return None
            end = min(end, size)
            table = self._in_turn(cursor.epoch, cursor.position, end, size)
            return table, replace(cursor, position=end, step=cursor.step + 1)
        return self._up_to_tokens(cursor, size)

    def count(self, cursor: Cursor) -> int:
        """Steps of the epoch from ``cursor`` on.

        Cost: O(1) for steps of equal sample counts; else the rest of the epoch's lengths are looked up.
        """
        size = self.order.size(cursor.epoch)
        if self.samples is not None:
            left = max(size - cursor.position, 0)
            return left // self.samples if self.drop_last else math.ceil(left / self.samples)
        before = cursor.step
        while (found := self._up_to_tokens(cursor, size)) is not None:
            cursor = found[1]
        return cursor.step - before

    def _up_to_tokens(self, cursor: Cursor, size: int) -> tuple[SampleTable, Cursor] | None:
        assert self.tokens is not None
        wanted = tokens_wanted(self.tokens, cursor.step)
        start, held, pieces = cursor.position, 0, []
        look = self._usual[0]
        while start < size:
            stop = min(start + look, size)
            look = min(2 * look, WINDOW)
            table = self._table(cursor.epoch, start, stop)
            whole = np.flatnonzero(table.start == 0)  # first piece of each sample
            tokens = np.add.reduceat(table.num_tokens, whole)
            reached = int(np.searchsorted(held + np.cumsum(tokens), wanted))
            if reached < tokens.size:
                last = int(whole[reached + 1]) if reached + 1 < whole.size else len(table)
                pieces.append(table.take(np.arange(last)))
                samples = start + reached + 1 - cursor.position
                self._usual[0] = min(samples + samples // 4 + 8, WINDOW)
                return join(pieces), replace(cursor, position=start + reached + 1, step=cursor.step + 1)
            pieces.append(table)
            held += int(tokens.sum())
            start = stop
        if self.drop_last or not pieces:
            return None
        return join(pieces), replace(cursor, position=size, step=cursor.step + 1)

    def _in_turn(self, epoch: int, start: int, stop: int, size: int) -> SampleTable:
        """The samples from ``start`` to ``stop``; the second of two steps that follow each other finds more.

        Not where rows are cut: then a sample may have several places, and rows may have to be read for it.
        """
        if 2 * (stop - start) > AHEAD or self.catalogs[0].oversize not in ("error", "drop"):
            return self._table(epoch, start, stop)
        held = self._ahead[0] if self._ahead else None
        if held is None or held.epoch != epoch or not held.start <= start <= held.stop:
            held = _Window(epoch, start, stop, self._table(epoch, start, stop))
        elif stop > held.stop:
            end = min(start + AHEAD, size)
            held = _Window(epoch, start, end, self._table(epoch, start, end))
        self._ahead[:] = [held]
        return part(held.table, start - held.start, stop - held.start)

    def _table(self, epoch: int, start: int, stop: int) -> SampleTable:
        source, place = self.order.locate(epoch, np.arange(start, stop))
        return sample_table(self.catalogs, source, place)


def tokens_wanted(tokens: StepTokens, step: int) -> int:
    """Tokens that a step wants.

    Raises:
        ValueError: the user's function gives less than 1.
    """
    wanted = tokens(step) if callable(tokens) else tokens
    if int(wanted) < 1:
        raise ValueError(
            f"step_tokens must give at least 1 token a step, it gave {wanted!r} for step {step}."
        )
    return int(wanted)


def part(table: SampleTable, start: int, stop: int) -> SampleTable:
    """Neighbouring rows of a table, as views."""
    return table if start == 0 and stop == len(table) else table.take(slice(start, stop))


def join(tables: Sequence[SampleTable]) -> SampleTable:
    """Tables one after another."""
    if len(tables) == 1:
        return tables[0]
    return SampleTable(
        num_tokens=np.concatenate([table.num_tokens for table in tables]),
        source=np.concatenate([table.source for table in tables]),
        row=np.concatenate([table.row for table in tables]),
        start=np.concatenate([table.start for table in tables]),
        num_loss_tokens=np.concatenate([table.num_loss_tokens for table in tables]),
        phases={name: np.concatenate([table.phases[name] for table in tables]) for name in tables[0].phases},
    )
