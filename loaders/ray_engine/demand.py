"""Tokens of each source that the coming steps need: the order is a function, so they are known beforehand."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loaders.order.steps import Steps
from loaders.state import Cursor

LOOKED_AT = 4
"""Steps that are looked at, at each of two places."""
FAR = 32
"""Steps until the second place: a reader takes some seconds to start."""


def apart(steps: Steps) -> Steps:
    """The same steps with an order of their own: one thread plans with an order, and keeps what it found."""
    return replace(steps, order=copy.deepcopy(steps.order))


def coming_tokens(steps: Steps, cursor: Cursor) -> NDArray[np.float64]:
    """[n] Tokens of each source in a step: the larger of those at the cursor and of those a few steps on.

    So a source whose weight rises has its readers before its samples are due.
    """
    near, behind = _mean_tokens(steps, cursor)
    samples = steps.samples or max((behind.position - cursor.position) // LOOKED_AT, 1)
    place = cursor.position + samples * FAR
    if place >= steps.order.size(cursor.epoch):
        return near
    return np.maximum(near, _mean_tokens(steps, replace(cursor, position=place, step=cursor.step + FAR))[0])


def _mean_tokens(steps: Steps, cursor: Cursor) -> tuple[NDArray[np.float64], Cursor]:
    total = np.zeros(len(steps.catalogs))
    count = 0
    while count < LOOKED_AT and (found := steps.members(cursor)) is not None:
        table, cursor = found
        total += np.bincount(table.source, table.num_tokens, total.size)
        count += 1
    return total / max(count, 1), cursor
