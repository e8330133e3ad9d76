"""The groups of neighbouring ranks that a plan may use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from balancer.planning.layout import slowness
from balancer.planning.problem import Ints, Problem


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Blocks:
    """The groups that a plan may use. Axis: N = blocks, those of degree j at ``bounds[j]:bounds[j + 1]``."""

    starts: Ints
    """[N] first rank."""
    degree: Ints
    """[N] ranks."""
    bounds: Ints
    """[D + 1]"""
    room: Ints
    """[N] tokens of a micro-batch."""
    pace: Ints
    """[N] slowness of the slowest member, in `SPEED_UNIT` parts."""


def make_blocks(problem: Problem) -> Blocks:
    """All groups of the allowed degrees."""
    starts = [problem.topology.group_starts(d) for d in problem.cp_degrees]
    pace = slowness(problem)
    equal = bool(np.all(pace == pace[0]) and np.all(problem.max_tokens == problem.max_tokens[0]))
    rooms, paces = [], []
    for first, degree in zip(starts, problem.cp_degrees, strict=True):
        if equal:
            rooms.append(np.full(first.size, degree * problem.max_tokens[0]))
            paces.append(np.full(first.size, pace[0]))
            continue
        members = first[:, None] + np.arange(degree)
        rooms.append(degree * problem.max_tokens[members].min(axis=1))
        paces.append(pace[members].max(axis=1))
    sizes = [first.size for first in starts]
    return Blocks(
        starts=np.concatenate(starts),
        degree=np.repeat(np.array(problem.cp_degrees, np.int64), sizes),
        bounds=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        room=np.concatenate(rooms),
        pace=np.concatenate(paces),
    )
