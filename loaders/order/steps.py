"""Which samples an optimizer step has: a function of the order and a position, never of the world size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loaders.catalog import Catalog, sample_table
from loaders.order.permutation import SampleOrder
from loaders.state import Cursor
from packing.table import SampleTable

WINDOW = 1024
"""Positions that are looked up at once to find where a step of so many tokens ends."""

StepTokens = int | Callable[[int], int]
"""Tokens of a step, or a function that gives them for a step's number."""


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
            table = self._table(cursor.epoch, cursor.position, min(end, size))
            return table, replace(cursor, position=min(end, size), step=cursor.step + 1)
        return self._up_to_tokens(cursor, size)

    def count(self, epoch: int, position: int = 0, step: int = 0) -> int:
        """Steps of the epoch from ``position`` on.

        Cost: O(1) for steps of equal sample counts; else the rest of the epoch's lengths are looked up.
        """
        size = self.order.size(epoch)
        if self.samples is not None:
            left = max(size - position, 0)
            return left // self.samples if self.drop_last else math.ceil(left / self.samples)
        cursor = Cursor(epoch=epoch, position=position, step=step)
        while (found := self._up_to_tokens(cursor, size)) is not None:
            cursor = found[1]
        return cursor.step - step

    def _up_to_tokens(self, cursor: Cursor, size: int) -> tuple[SampleTable, Cursor] | None:
        assert self.tokens is not None
        wanted = tokens_wanted(self.tokens, cursor.step)
        start, held, pieces = cursor.position, 0, []
        while start < size:
            stop = min(start + WINDOW, size)
            table = self._table(cursor.epoch, start, stop)
            whole = np.flatnonzero(table.start == 0)  # first piece of each sample
            tokens = np.add.reduceat(table.num_tokens, whole)
            reached = int(np.searchsorted(held + np.cumsum(tokens), wanted))
            if reached < tokens.size:
                last = int(whole[reached + 1]) if reached + 1 < whole.size else len(table)
                pieces.append(table.take(np.arange(last)))
                return join(pieces), replace(cursor, position=start + reached + 1, step=cursor.step + 1)
            pieces.append(table)
            held += int(tokens.sum())
            start = stop
        if self.drop_last or not pieces:
            return None
        return join(pieces), replace(cursor, position=size, step=cursor.step + 1)

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
