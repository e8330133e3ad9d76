"""What each allowed degree costs the samples that the smallest one cannot always take, and the bound.

For a guess C of the step time, each sample gets its *canonical* degree: the smallest that holds it and ends
within C. As rank-time (degree x time) does not fall with the degree, no other choice within C uses less; so
C is impossible when a sample has no such degree, or when the canonical rank-time exceeds what the ranks have.
The smallest C that passes is the bound (dual approximation, Hochbaum and Shmoys 1987, for moldable tasks).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer._kernels import bound
from balancer.planning.problem import Ints, Problem

Floats = NDArray[np.float64]

NARROWEST = 0.25
"""Larger degrees are looked at for samples that take more than this share of the bound on the smallest."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Ladder:
    """Axes: D = allowed degrees, rising; B = the longest samples, S = all, both by falling length."""

    degrees: Ints
    """[D]"""
    fixed_ns: Ints
    """[D] nanoseconds of every micro-batch."""
    memory: Ints
    """[D] first sample that a group's memory holds; all shorter ones fit as well."""
    speed: Floats
    """[D] speed of the fastest group that there could be."""
    base_ns: Ints
    """[S] nanoseconds on the smallest degree."""
    base_sums: Floats
    """[S + 1] running sums of ``degree * nanoseconds`` on the smallest degree."""
    time_ns: Ints
    """[D - 1, B] nanoseconds on the larger degrees."""
    lower_bound_ns: int
    """No plan is faster."""

    def ranges(self, guess: float, spent: float = 0.0, stages: int = 1) -> tuple[Ints, bool]:
        """([D] first sample of each degree when all end within ``guess``, whether that is possible)."""
        lo = np.empty(self.degrees.size, np.int64)
        fits = bound.degree_ranges(
            guess, spent, self.fixed_ns, stages, self.speed, self.memory, self.base_ns, self.time_ns, lo
        )
        return lo, bool(fits)

    def clamped_ranges(self, problem: Problem, guess: float) -> Ints:
        """[D] the same for a plan: what ends nowhere in time goes where it fits, short samples stay narrow."""
        lo, _ = self.ranges(guess)
        lo[-1] = 0
        lo[0] = min(lo[0], self.time_ns.shape[1])
        short = problem.first_too_short()
        for j in range(1, lo.size):
            lo[j - 1] = max(min(lo[j - 1], short[j]), self.memory[j - 1])
            lo[j] = min(lo[j], lo[j - 1])
        return lo


def ladder_of(problem: Problem) -> Ladder:
    """The problem's ladder, built once."""
    if "ladder" not in problem._cache:
        problem._cache["ladder"] = build_ladder(problem)
    ladder: Ladder = problem._cache["ladder"]
    return ladder


def least_batches(problem: Problem) -> tuple[int, int]:
    """(micro-batches that the ranks together run at least, one shared by d ranks counting d; at most)."""
    tokens = int(problem.num_tokens.sum())
    least = -(-tokens // int(problem.max_tokens.max()))
    if problem.cp_degrees == (1,):
        # Two samples above half the cap never share a micro-batch.
        least = max(least, int(np.count_nonzero(2 * problem.num_tokens > problem.max_tokens.max())))
    return least, max(len(problem) * problem.cp_degrees[-1], least)


def build_ladder(problem: Problem) -> Ladder:
    """Evaluate the costs that matter and prove the bound.

    Raises:
        ValueError: no guess is possible, which means costs beyond 2**60 nanoseconds.
    """
    ranks, topology = problem.ranks, problem.topology
    degrees = problem.cp_degrees
    fixed = np.array([problem.fixed_ns(d) for d in degrees], np.int64)
    speeds = np.ones(ranks) if topology.speed is None else np.sort(topology.speed)[::-1]
    # d ranks go at the pace of the slowest: at best at that of the d-th fastest.
    speed = speeds[np.array(degrees) - 1]
    power = float(speeds.sum())
    equal_power = bool(speeds[0] == speeds[-1])
    stages = topology.pipeline_stages
    base = problem.work_ns(degrees[0])
    base_sums = np.zeros(len(problem) + 1)
    np.cumsum(base, out=base_sums[1:])
    base_sums *= degrees[0]
    memory = np.array([problem.first_that_fits(d) for d in degrees], np.int64)

    least, most = least_batches(problem)
    if problem.sync == "micro_batch":
        slots = max(1, -(-int(problem.num_tokens.sum()) // int(problem.max_tokens.sum())), -(-least // ranks))
        per_rank = [slots, most]
        if problem.micro_batches is not None:
            per_rank = [max(slots, problem.micro_batches)] * 2
        # Every other slot takes its fixed cost, on every rank.
        spent = float((per_rank[0] - 1) * fixed.min())
    else:
        per_rank = [least / ranks, most / ranks]
        if problem.micro_batches is not None:
            per_rank[1] = max(per_rank[0], min(per_rank[1], problem.micro_batches))
        spent = 0.0

    def least_guess(start: int, time: Ints, area: Floats, count: int) -> int:
        # Whole nanoseconds round each time by half a one, up to degree / 2 in rank-time.
        slack = float(len(problem) * degrees[count - 1]) if count > 1 else 0.0
        return int(
            bound.least_guess(
                start, spent, fixed[:count], stages, speed[:count], memory[:count], base, base_sums, time, area,
                slack, power, float(ranks), float(per_rank[0]), float(per_rank[1]), equal_power,
            )
        )  # fmt: skip

    # Rank-time on the smallest degree alone: which samples can ever need a larger one?
    area_guess = _area_guess(
        base_sums[-1] - len(problem) * degrees[-1] * (len(degrees) > 1),
        power, float(ranks), fixed, stages, per_rank, equal_power,
    )  # fmt: skip
    if len(degrees) == 1:
        longest = 0
    elif degrees[0] == 1:
        share = NARROWEST * (1 if problem.sync == "step" and stages == 1 else 1 / (per_rank[0] + stages - 1))
        limit = int(area_guess * share / stages * speed[0]) - int(fixed[0])
        longest = int(bound.first_within(limit, memory[0], base))
    else:
        # A larger smallest degree may cost more rank-time than its multiples do; look at all samples.
        longest = len(problem)
    time = np.empty((len(degrees) - 1, longest), np.int64)
    area = np.zeros((len(degrees) - 1, longest + 1))
    least_area = np.full(longest, np.inf)
    for j in range(len(degrees) - 1, 0, -1):
        time[j - 1] = problem.work_ns_of_longest(degrees[j], longest)
        np.minimum(least_area, time[j - 1] * float(degrees[j]), out=least_area)
        np.cumsum(least_area, out=area[j - 1, 1:])
    if degrees[0] > 1 and longest:
        np.minimum(least_area, base * float(degrees[0]), out=least_area)
        np.cumsum(least_area, out=base_sums[1:])
        area_guess = 0
    bound_ns = least_guess(area_guess, time, area, len(degrees))
    if bound_ns < 0:
        raise ValueError(
            "the cost model predicts steps beyond 2**60 nanoseconds (36 years), or max_tokens leaves no "
            "feasible plan. Coefficients are seconds per token and per pair; check their unit."
        )
    return Ladder(
        degrees=np.array(degrees, np.int64), fixed_ns=fixed, memory=memory, speed=speed, base_ns=base,
        base_sums=base_sums, time_ns=time, lower_bound_ns=bound_ns,
    )  # fmt: skip


def _area_guess(
    total: float, power: float, ranks: float, fixed: Ints, stages: int, per_rank: list[float], equal: bool
) -> int:
    """Least guess at which the ranks can do ``total`` nanoseconds of work, were there no single samples."""
    one = np.zeros(1, np.int64)
    return max(
        0,
        int(
            bound.least_guess(
                0, 0.0, fixed[:1] * 0 + fixed.min(), stages, np.ones(1), np.zeros(1, np.int64), one,
                np.array([0.0, total]), np.empty((0, 0), np.int64), np.empty((0, 1)), 0.0, power, ranks,
                float(per_rank[0]), float(per_rank[1]), equal,
            )
        ),
    )  # fmt: skip
