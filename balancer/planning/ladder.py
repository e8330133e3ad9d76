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
from balancer.planning.layout import exact_sum
from balancer.planning.longest import too_long
from balancer.planning.problem import Ints, Problem

Floats = NDArray[np.float64]

NARROWEST = 0.25
"""Larger degrees are looked at for samples that take more than this share of the bound on the smallest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Supply:
    """What the ranks have to give to samples within a guess of the step time."""

    power: float
    """Sum of the speeds."""
    equal: bool
    """Whether all speeds are equal."""
    ranks: float
    least_batches: float
    """Micro-batches a rank (slots, under ``sync="micro_batch"``) that plans have at least, on average."""
    most_batches: float
    """The same, at most."""
    fixed_ns: int
    """Least nanoseconds of a micro-batch, or of a dummy."""
    spent_ns: float
    """Nanoseconds that no single sample can use: the other slots' fixed costs."""
    dummy_ns: float
    """What one of those takes on the fastest rank."""


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
    area: Floats
    """[D - 1, B + 1] running sums of least rank-nanoseconds, over each of those and all larger ones."""
    slack: float
    """Rank-nanoseconds by which rounding may have raised all samples together."""
    supply: Supply
    lower_bound_ns: int
    """No plan is faster."""

    def ranges(self, guess: float, spent: float = 0.0, stages: int = 1) -> tuple[Ints, bool]:
        """([D] first sample of each degree when all end within ``guess``, whether that is possible)."""
        lo = np.empty(self.degrees.size, np.int64)
        fits = bound.degree_ranges(
            guess, spent, self.fixed_ns, stages, self.speed, self.memory, self.base_ns, self.time_ns, lo
        )
        return lo, bool(fits)

    def least_work(self, lo: Ints) -> float:
        """Rank-nanoseconds of all samples at least, if those before ``lo[j]`` need more than degree j."""
        total: float = self.base_sums[-1] - self.base_sums[lo[0]] - self.slack
        for j, row in enumerate(self.area):
            total += row[lo[j]] - row[lo[j + 1]]
        return total

    def clamped_ranges(self, guess: float, short: Ints) -> Ints:
        """[D] the same for a plan: what ends nowhere in time goes widest, short samples stay narrow.

        short: [D] first sample too short for each degree.
        """
        lo, _ = self.ranges(guess)
        bound.clamp_ranges(lo, self.time_ns.shape[1], self.memory, short)
        return lo


def ladder_of(problem: Problem) -> Ladder:
    """The problem's ladder, built once."""
    if "ladder" not in problem._cache:
        problem._cache["ladder"] = build_ladder(problem)
    ladder: Ladder = problem._cache["ladder"]
    return ladder


def supply_of(problem: Problem) -> Supply:
    """Count the micro-batches that every plan needs."""
    ranks = problem.ranks
    speed = np.ones(ranks) if problem.topology.speed is None else problem.topology.speed
    equal = bool(speed.min() == speed.max())
    fixed = min(problem.fixed_ns(d) for d in (1, *problem.cp_degrees))
    tokens, largest_cap = int(problem.num_tokens.sum()), int(problem.max_tokens.max())
    least = -(-tokens // largest_cap)
    if problem.cp_degrees == (1,):
        # Two samples above half the cap never share a micro-batch.
        least = max(least, int(np.count_nonzero(2 * problem.num_tokens > largest_cap)))
    if problem.sync == "micro_batch":
        slots = max(1, -(-tokens // int(problem.max_tokens.sum())), -(-least // ranks))
        slots = -(-slots // problem.slots_multiple_of) * problem.slots_multiple_of
        most = float(len(problem) * problem.slots_multiple_of + slots)
        if problem.micro_batches is not None:
            slots = max(slots, problem.micro_batches)
            most = float(slots)
        return Supply(
            power=exact_sum(speed), equal=equal, ranks=float(ranks), least_batches=float(slots),
            most_batches=most, fixed_ns=fixed, spent_ns=(slots - 1) * fixed / float(speed.max()),
            dummy_ns=fixed / float(speed.max()),
        )  # fmt: skip
    # With equal speeds the mean number counts, otherwise that of any one rank.
    most = len(problem) * problem.cp_degrees[-1] / ranks if equal else float(len(problem))
    if problem.micro_batches is not None:
        most = min(most, float(problem.micro_batches))
    return Supply(
        power=exact_sum(speed), equal=equal, ranks=float(ranks), least_batches=least / ranks,
        most_batches=max(most, least / ranks), fixed_ns=fixed, spent_ns=0.0, dummy_ns=0.0,
    )  # fmt: skip


def build_ladder(problem: Problem) -> Ladder:
    """Evaluate the costs that matter and prove the bound.

    Raises:
        ValueError: no guess is possible, which means costs beyond 2**60 nanoseconds.
    """
    supply, stages = supply_of(problem), problem.topology.pipeline_stages
    degrees = np.array(problem.cp_degrees, np.int64)
    fixed = np.array([problem.fixed_ns(d) for d in problem.cp_degrees], np.int64)
    speed = np.ones(problem.ranks) if problem.topology.speed is None else problem.topology.speed
    # d ranks go at the pace of the slowest: at best at that of the d-th fastest.
    group_speed = np.sort(speed)[::-1][degrees - 1]
    memory = np.array([problem.first_that_fits(d) for d in problem.cp_degrees], np.int64)
    base = problem.work_ns(problem.cp_degrees[0])
    # Whole nanoseconds round each time by half a one, which is degree / 2 in rank-time.
    slack = float(len(problem) * degrees[-1]) if degrees.size > 1 else 0.0
    total = float(base.sum()) * float(degrees[0])
    start = _least_guess_of_sum(total - slack, supply, stages) if degrees[0] == 1 else 0

    longest = len(problem)
    if degrees[0] == 1:
        # Communication only adds to rank-time: who ends in time on one rank needs no larger degree.
        share = NARROWEST
        if problem.sync == "micro_batch" or stages > 1:
            share /= max(supply.least_batches, 1.0) + stages - 1
        limit = int(start * share / stages * group_speed[0]) - int(fixed[0])
        longest = int(bound.first_within(limit, memory[0], base)) if degrees.size > 1 else 0
    time = problem.work_ns_of_longest(problem.cp_degrees[1:], longest)
    base_sums, area = np.empty(len(problem) + 1), np.empty((degrees.size - 1, longest + 1))
    bound.least_areas(degrees, base, time, base_sums, area)
    lower_bound = int(
        bound.least_guess(
            start, supply.spent_ns, fixed, stages, group_speed, memory, base, base_sums, time, area, slack,
            supply.power, supply.ranks, float(supply.fixed_ns), supply.least_batches, supply.most_batches,
            supply.equal,
        )
    )  # fmt: skip
    if lower_bound > 0 and problem.sync == "step" and stages == 1 and supply.fixed_ns > 0:
        lower_bound = _with_charges(
            problem, supply, degrees, fixed, group_speed, memory, base, time, slack, lower_bound
        )
    if lower_bound < 0:
        raise too_long()
    return Ladder(
        degrees=degrees, fixed_ns=fixed, memory=memory, speed=group_speed, base_ns=base, base_sums=base_sums,
        time_ns=time, area=area, slack=slack, supply=supply, lower_bound_ns=lower_bound,
    )  # fmt: skip


def _least_guess_of_sum(total: float, supply: Supply, stages: int) -> int:
    """Least guess at which the ranks can do ``total`` nanoseconds of work, were there no single samples."""
    nothing, one = np.zeros(1, np.int64), np.ones(1)
    guess = bound.least_guess(
        0, 0.0, nothing, stages, one, nothing, nothing, np.array([0.0, total]), np.empty((0, 0), np.int64),
        np.empty((0, 1)), 0.0, supply.power, supply.ranks, float(supply.fixed_ns), supply.least_batches,
        supply.most_batches, supply.equal,
    )  # fmt: skip
    return max(int(guess), 0)


CROWDED = 0.02
"""Share of samples longer than a rank's room from which `_with_charges` pays: 1 ms for 65,536 samples."""


def _with_charges(
    problem: Problem, supply: Supply, degrees: Ints, fixed: Ints, speed: Floats, memory: Ints, base: Ints,
    time: Ints, slack: float, bound_ns: int,
) -> int:  # fmt: skip
    """A bound that charges each sample for the micro-batch it is in; ``bound_ns`` where it proves no more.

    Let F be the least fixed cost, x a sample's padded tokens over the room of a group of d ranks, and
    ``0 <= a <= 1``. Then ``g(x) = a x`` up to a half and ``1 - a (1 - x)`` above sums to at most 1 over a
    micro-batch: without a sample above a half it is at most a, and two of those never fit, so that beside one
    the others have ``a (1 - x)`` at most. (A dual feasible function, Lueker 1983.) So there are at least as
    many micro-batches of d ranks as the sum of g over their samples, each takes ``d F`` of rank-time or more,
    and a plan takes what its samples' work and charges ``d F g(x)`` sum to, at least that of the cheapest
    degree for each. Any a is valid for any degree. Here it is 1, the share of tokens, but for the second
    degree: there a sample of half a rank's room shall cost the same as on a rank alone, so that what rides in
    wide groups pays its communication and what fills them badly pays the rest. With 1, degrees above the
    second never cost a sample that fits one rank less than that, as communication and padding only add.
    """
    if degrees.size < 2 or degrees[0] != 1 or memory[0] < CROWDED * len(problem):
        return bound_ns
    cheapest = float(supply.fixed_ns)
    rooms = np.array([problem.group_room(d) for d in problem.cp_degrees], np.float64)
    second = problem.cp_degrees[1]
    wide = problem.work_ns(second)
    middle = int(bound.first_within(int(rooms[0]) // 2, 0, problem.num_tokens))
    middle = min(middle, len(problem) - 1)
    price = cheapest * float(problem.num_tokens[middle]) / rooms[0]
    a = min(max(1.0 - (float(wide[middle]) * second - float(base[middle])) / price, 0.0), 1.0)
    sums, area = np.empty(len(problem) + 1), np.empty((degrees.size - 1, time.shape[1] + 1))
    bound.charged_areas(degrees, problem.num_tokens, base, wide, time, rooms, cheapest, a, sums, area)
    return int(
        bound.least_guess(
            bound_ns, 0.0, fixed, 1, speed, memory, base, sums, time, area, slack, supply.power, supply.ranks,
            0.0, 0.0, supply.most_batches, supply.equal,
        )
    )  # fmt: skip
