"""Slow, obvious twins of the balancer's kernels, and what the optimum is on tiny steps.

Nothing here shares code with the planner; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product

import numpy as np
from numpy.typing import NDArray

from balancer.planning.problem import Cost
from balancer.topology import Topology

Groups = tuple[tuple[int, int], ...]
"""(first rank, degree) of each micro-batch."""


def least_loaded(work: Sequence[int], load: Sequence[int]) -> tuple[list[int], list[int]]:
    """(rank of each sample, loads): each sample to the lowest of the least loaded ranks."""
    loads = list(load)
    ranks = []
    for w in work:
        rank = loads.index(min(loads))
        loads[rank] += w
        ranks.append(rank)
    return ranks, loads


def first_fit(tokens: Sequence[int], capacity: int) -> list[int]:
    """Bin of each sample: the first that has room."""
    room: list[int] = []
    bins = []
    for need in tokens:
        fitting = [b for b, left in enumerate(room) if left >= need]
        if not fitting:
            room.append(capacity)
        bins.append(fitting[0] if fitting else len(room) - 1)
        room[bins[-1]] -= need
    return bins


def largest_differencing(work: Sequence[int], parts: int) -> list[int]:
    """Sums of the parts of Karmarkar and Karp's method, rising; lists of ``parts`` sums a state."""
    states = [(-(w if parts > 1 else 0), i, [w] + [0] * (parts - 1)) for i, w in enumerate(work)]
    while len(states) > 1:
        states.sort(key=lambda state: state[:2])
        (_, i, a), (_, _, b) = states[:2]
        merged = sorted((x + y for x, y in zip(a, reversed(b), strict=True)), reverse=True)
        states[:2] = [(-(merged[0] - merged[-1]), i, merged)]
    return sorted(states[0][2])


def run_queues(first_rank: Sequence[int], cp_degree: Sequence[int], queues: list[list[int]]) -> list[int]:
    """Micro-batches in the order in which they run when every rank works through its queue.

    A micro-batch starts when it is at the head of the queue of every rank of its group. The list is shorter
    than the number of micro-batches when ranks wait for each other for ever.
    """
    done: list[int] = []
    left = [list(queue) for queue in queues]
    while True:
        heads = {queue[0] for queue in left if queue}
        ready = [
            m
            for m in sorted(heads)
            if all(left[r] and left[r][0] == m for r in range(first_rank[m], first_rank[m] + cp_degree[m]))
        ]
        if not ready:
            return done
        for r in range(first_rank[ready[0]], first_rank[ready[0]] + cp_degree[ready[0]]):
            left[r].pop(0)
        done.append(ready[0])


def set_partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """All divisions of ``items`` into lists that are not empty."""
    if not items:
        yield []
        return
    for parts in set_partitions(items[1:]):
        yield [[items[0]], *parts]
        for k in range(len(parts)):
            yield [*parts[:k], [items[0], *parts[k]], *parts[k + 1 :]]


def best_time_ns(
    lengths: NDArray[np.int64],
    *,
    topology: Topology,
    max_tokens: NDArray[np.int64],
    cost: Cost,
    cp_degrees: Sequence[int],
    sync: str,
    micro_batches: int | None = None,
) -> Fraction | None:
    """Least nanoseconds of any plan, by trying all; None if there is none. For a handful of samples.

    Under ``sync="step"`` a rank's time is the sum of its micro-batches, as if it never waited inside a step,
    so this is also below every plan whose groups are not nested.
    """
    speed = [Fraction(1)] * topology.ranks
    if topology.speed is not None:
        speed = [Fraction(float(v)) for v in topology.speed]
    groups = [(s, d) for d in cp_degrees for s in topology.group_starts(d).tolist()]
    best: Fraction | None = None
    for parts in set_partitions(list(range(len(lengths)))):
        options = [_options(lengths[part], groups, max_tokens, cost, speed) for part in parts]
        for choice in product(*options):
            time = _time(choice, topology, sync, micro_batches, speed, cost.fixed_nanoseconds(1))
            if time is not None and (best is None or time < best):
                best = time
    return best


def _options(
    lengths: NDArray[np.int64],
    groups: list[tuple[int, int]],
    max_tokens: NDArray[np.int64],
    cost: Cost,
    speed: list[Fraction],
) -> list[tuple[int, int, Fraction]]:
    """(first rank, degree, nanoseconds) of every group that holds these samples together."""
    options = []
    for first, degree in groups:
        pieces = 2 * degree if degree > 1 else 1
        tokens = sum(-(-int(n) // pieces) * pieces for n in lengths)
        if tokens <= degree * int(max_tokens[first : first + degree].min()):
            nominal = int(cost.nanoseconds(lengths, degree).sum()) + cost.fixed_nanoseconds(degree)
            options.append((first, degree, nominal / min(speed[first : first + degree])))
    return options


def _time(
    choice: tuple[tuple[int, int, Fraction], ...],
    topology: Topology,
    sync: str,
    micro_batches: int | None,
    speed: list[Fraction],
    idle_ns: int,
) -> Fraction | None:
    later = topology.pipeline_stages - 1
    if sync == "step":
        times: list[list[Fraction]] = [[] for _ in range(topology.ranks)]
        for first, degree, time in choice:
            for rank in range(first, first + degree):
                times[rank].append(time)
        if micro_batches is not None and max(map(len, times)) > micro_batches:
            return None
        return max(sum(ts, Fraction(0)) + later * max(ts, default=Fraction(0)) for ts in times)
    best: Fraction | None = None
    slots = range(len(choice) if micro_batches is None else micro_batches)
    for slot_of in product(slots, repeat=len(choice)):
        taken: dict[int, set[int]] = {}
        height: dict[int, Fraction] = {}
        lawful = True
        for (first, degree, time), slot in zip(choice, slot_of, strict=True):
            members = set(range(first, first + degree))
            lawful &= not members & taken.setdefault(slot, set())
            taken[slot] |= members
            height[slot] = max(height.get(slot, Fraction(0)), time)
        if not lawful:
            continue
        for slot in slots if micro_batches is not None else taken:
            for rank in set(range(topology.ranks)) - taken.get(slot, set()):
                height[slot] = max(height.get(slot, Fraction(0)), idle_ns / speed[rank])
        total = sum(height.values(), Fraction(0)) + later * max(height.values())
        if best is None or total < best:
            best = total
    return best
