"""Twin of `balancer._kernels.fill`: samples into units that have a work target and a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

Ints = Sequence[int]


def dense_count(work: Ints, dense: float) -> int:
    """How many samples, longest first, hold less than that share of the work together."""
    return sum(held < dense * sum(work) for held in accumulate(work))


def fill(
    work: Ints, tokens: Ints, target: Ints, budget: Ints, bins: Sequence[Ints], pace: Ints, dense_until: int
) -> tuple[list[tuple[int, int] | None], list[int], list[list[int]]]:
    """([S] unit of each sample and bin in it, targets left, room left [U] of each bin).

    Of the units that have a bin for the sample, the one with most work due for each token left takes it
    (the first ``dense_until`` samples) or the one with most time left; of that unit the tightest bin.
    Work a token counts in 64ths of a nanosecond; time in 256ths of work and pace.
    """
    target, budget, room = list(target), list(budget), [list(free) for free in bins]
    places: list[tuple[int, int] | None] = []
    for i, need in enumerate(tokens):
        fitting = [u for u in range(len(room)) if max(room[u], default=0) >= need]
        if not fitting:
            places.append(None)
            continue
        if i < dense_until:
            due = {u: target[u] * 64 // max(budget[u], 1) for u in fitting}
        else:
            due = {u: target[u] // 256 * (pace[u] // 256) for u in fitting}
        u = max(fitting, key=lambda v: due[v])
        b = min((b for b, free in enumerate(room[u]) if free >= need), key=lambda b: room[u][b])
        target[u] -= work[i]
        budget[u] -= need
        room[u][b] -= need
        places.append((u, b))
    return places, target, room
