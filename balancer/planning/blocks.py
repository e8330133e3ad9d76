"""The groups of neighbouring ranks that a plan may use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from balancer.planning.layout import SPEED_UNIT, slowness
from balancer.planning.problem import Ints, Problem
from balancer.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Blocks:
    """Axis: N = groups of neighbouring ranks, those of the j-th degree at ``bounds[j]:bounds[j + 1]``."""

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
    topology = problem.topology
    starts, degree, bounds = _groups(topology.ranks, topology.ranks_per_node, problem.cp_degrees)
    if topology.speed is None and problem.same_caps:
        room, pace = degree * problem.max_tokens[0], np.full(starts.size, SPEED_UNIT)
    else:
        slow = slowness(problem)
        least = np.array(
            [problem.max_tokens[s : s + d].min() for s, d in zip(starts, degree, strict=True)], np.int64
        )
        pace = np.array([slow[s : s + d].max() for s, d in zip(starts, degree, strict=True)], np.int64)
        room = degree * least
    return Blocks(starts=starts, degree=degree, bounds=bounds, room=room, pace=pace)


@lru_cache(maxsize=64)
def _groups(ranks: int, ranks_per_node: int | None, degrees: tuple[int, ...]) -> tuple[Ints, Ints, Ints]:
    topology = Topology(ranks, ranks_per_node=ranks_per_node)
    starts = [topology.group_starts(d) for d in degrees]
    sizes = [first.size for first in starts]
    return (
        np.concatenate(starts),
        np.repeat(np.array(degrees, np.int64), sizes),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
    )
