"""Slots of equal micro-batches: for ranks that meet in every one, for pipelines, and for fixed counts.

A slot lasts as long as its longest micro-batch, so alike ones belong together. Wide groups come first, each
in the slot that grows least by it; the height to which all slots must be filled follows from the work that
is left; then one micro-batch for each free group of the smallest degree is filled up to its slot's height.
At last the finished packs are sorted and dealt to the slots, tallest slot first, which can only help.

What cannot be shorter than the best plan so far is not built: numbers of slots at which the ranks have not
enough time for the work within it, and degrees that make more work than that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from balancer._kernels import bound
from balancer._kernels import slots as kernels
from balancer._kernels.waves import shelve
from balancer.planning.blocks import Blocks, make_blocks
from balancer.planning.ladder import Ladder, ladder_of
from balancer.planning.layout import SPEED_UNIT, Layout, layout_of, objective_ns, slots_counted, slowness
from balancer.planning.longest import LONGEST_NS, TooLong
from balancer.planning.problem import Ints, Problem, that_holds


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """How to build a layout."""

    height: float
    """Slot height at which the degrees of the long samples are chosen, in parts of the mean height."""
    riders: bool
    """Whether other samples ride in the wide groups that end before their slot."""
    tight: bool = False
    """Whether the rest is packed by tokens alone."""


HEIGHTS: tuple[float, ...] = (1.0, 1.15, 1.4, 2.0)
"""Heights of `Way` in the order of trial."""

NARROW = Way(height=64.0, riders=False, tight=True)

MANY = 2048
"""Samples above which only the ways that promise most are built: 16,384 on 1,024 ranks take 2 ms each."""

CLOSE = 1e-4
"""Gap of a step of many samples that is not worth another try."""

DENSE = 0.8
"""Share of the work that is dealt by density before the rest is dealt by time."""

WINDOW = 512
"""Micro-batches of a degree, opened last, that a long sample may join."""

NEVER = 2**62
"""Nanoseconds above every plan's."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Built:
    """A layout before it is written down, and how long the step takes."""

    batch_of: Ints
    """[S]"""
    slot: Ints
    """[M]"""
    block: Ints
    """[M]"""
    time_ns: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Ground:
    """What all layouts of a step share."""

    problem: Problem
    ladder: Ladder
    blocks: Blocks
    level: Ints
    """[N] degree of each block, by its place among the allowed ones."""
    pace: Ints
    """[R] slowness."""
    short: Ints
    """[D] first sample too short for each degree."""
    safe: bool
    """Whether no plan's time passes 64 bits."""

    @classmethod
    def of(cls, problem: Problem) -> Ground:
        """The ground of a step that its widest degree holds."""
        blocks, pace, times = make_blocks(problem), slowness(problem), problem.times_ns()
        ladder = ladder_of(problem)
        stages = problem.topology.pipeline_stages
        batches = 2 * len(problem) + problem.slots_multiple_of + (problem.micro_batches or 0)
        most = float(times.max()) * len(problem) + float(ladder.fixed_ns.max()) * batches
        return cls(
            problem=problem,
            ladder=ladder,
            blocks=blocks,
            level=np.repeat(np.arange(len(problem.cp_degrees)), np.diff(blocks.bounds)),
            pace=pace,
            short=problem.first_too_short(),
            safe=most * stages * float(pace.max()) / SPEED_UNIT < LONGEST_NS,
        )

    def layout(self, built: Built) -> Layout:
        """Write a layout down."""
        blocks = self.blocks
        return layout_of(
            built.batch_of, blocks.starts[built.block], blocks.degree[built.block], slot=built.slot
        )

    def room_within(self, time_ns: int, slots: int) -> float:
        """Rank-nanoseconds of samples that fit into that many slots, from above."""
        supply, stages = self.ladder.supply, self.problem.topology.pipeline_stages
        meet = self.problem.sync == "micro_batch"
        # Ranks that meet once a step may leave slots empty.
        least = float(slots) if meet else min(supply.least_batches, float(slots))
        room: float = bound.rank_work(
            float(time_ns), supply.power, supply.ranks, float(supply.fixed_ns), stages - 1, least,
            float(slots), supply.equal,
        )  # fmt: skip
        return room

    def may_be_shorter(self, slots: int, time_ns: int) -> bool:
        """Whether nothing proves that every plan of that many slots takes ``time_ns`` or more."""
        if time_ns >= NEVER:
            return True
        stages = self.problem.topology.pipeline_stages
        spent = (slots - 1) * self.ladder.supply.dummy_ns
        lo, fits = self.ladder.ranges(float(time_ns - 1), spent, stages)
        lo[0] = min(lo[0], self.ladder.time_ns.shape[1])
        return fits and self.ladder.least_work(lo) <= self.room_within(time_ns - 1, slots)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Slots:
    """Layouts of one number of slots. Equal degrees are shelved once, equal ways built once."""

    ground: Ground
    slots: int
    _shelves: dict[tuple[int, ...], Shelf | None] = field(default_factory=dict)
    _built: dict[tuple[tuple[int, ...], bool, bool], Built | None] = field(default_factory=dict)

    @property
    def mean_ns(self) -> float:
        """Height of a slot, were all alike."""
        stages = self.ground.problem.topology.pipeline_stages
        return self.ground.ladder.lower_bound_ns / (self.slots + stages - 1)

    def ranges(self, height: float) -> Ints:
        """[D] first sample of each degree, at a height in parts of the mean."""
        return self.ground.ladder.clamped_ranges(min(height * self.mean_ns, 2.0**60), self.ground.short)

    def build(self, way: Way, ranges: Ints) -> Built | None:
        """A layout, or None where a sample finds no room."""
        key = tuple(ranges.tolist())
        if (key, way.riders, way.tight) not in self._built:
            if key not in self._shelves:
                self._shelves[key] = _shelve(self.ground, self.slots, int(self.mean_ns), ranges)
            shelf = self._shelves[key]
            built = None if shelf is None else _fill(self.ground, shelf, way)
            self._built[key, way.riders, way.tight] = built
        return self._built[key, way.riders, way.tight]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shelf:
    """The wide micro-batches of a layout. Axis: W = micro-batches."""

    batch_of: Ints
    """[samples of wide groups] micro-batch of each."""
    slot: Ints
    """[W]"""
    block: Ints
    """[W]"""
    free: Ints
    """[W] tokens."""
    cost: Ints
    """[W] nanoseconds."""
    height: Ints
    """[slots] nanoseconds that each slot will take at least."""
    taken: NDArray[np.bool_]
    """[slots, R]"""


def divide(
    problem: Problem, *, few_ways: bool = False, counts: int | None = None, below_ns: int = NEVER
) -> Layout | None:
    """The best of several numbers of slots and heights; None where none of them holds the step.

    Args:
        problem: the step.
        few_ways: whether only ways that let others ride are built, at `_promising` heights, until a number of
            slots brings nothing: half of the time, and of 52 steps of seven mixes none got longer by it.
        counts: numbers of slots to try at most; ``None``: as long as they promise something.
        below_ns: what another plan takes; layouts that cannot be shorter need not be built.

    With many samples few ways are built in any case: the third number of slots won none of 24 steps of six
    mixes on 64 to 1,024 ranks, and of 147 small steps, where all ways are built, eight would get longer by
    few ways, by at most 2.3 %, in 0.5 of the time.
    """
    part = that_holds(problem, problem.cp_degrees)
    if part is None:
        return None
    ground = Ground.of(part)
    heights = HEIGHTS[:1] if ground.ladder.degrees.size == 1 else HEIGHTS
    few_ways = few_ways or len(part) > MANY
    with_riders = (True,) if ground.ladder.degrees.size == 1 or few_ways else (True, False)
    promising = heights
    enough = ground.ladder.lower_bound_ns * (1 + (CLOSE if len(part) > MANY else 0))
    best: Built | None = None
    misses = 0
    evened = False
    for slots in itertools.islice(slot_counts(part), counts):
        limit = below_ns if best is None else min(best.time_ns, below_ns)
        if not ground.may_be_shorter(slots, limit):
            if part.topology.pipeline_stages == 1:
                break  # more slots leave less time
            continue
        here = Slots(ground=ground, slots=slots)
        ways = [Way(height=height, riders=riders) for height in promising for riders in with_riders]
        found, homeless = _shortest(here, ways, limit)
        even = found is not None or not homeless
        if not even:
            # Even work leaves too little room somewhere: pack as tightly as first fit does, at last with
            # larger degrees only for samples that need their memory.
            ways = [Way(height=h, riders=r, tight=True) for h in heights for r in (True, False)] + [NARROW]
            found, _ = _shortest(here, ways, limit)
        improved = found is not None and (best is None or found[1].time_ns < best.time_ns)
        if found is not None and improved:
            best = found[1]
        evened |= even
        misses += best is not None and not improved
        # Counts at which only the tight packing fits say little about the next one.
        if misses >= ((1 if few_ways else 2) if evened else 8) or (
            best is not None and best.time_ns <= enough
        ):
            break
        if even and few_ways and found is not None:
            promising = _promising(heights, found[0].height, homeless)
    return None if best is None else ground.layout(best)


def _shortest(here: Slots, ways: list[Way], limit: int) -> tuple[tuple[Way, Built] | None, set[float]]:
    """(Way and layout of the shortest that were built, heights at which a sample found no room)."""
    best: tuple[Way, Built] | None = None
    homeless: set[float] = set()
    for way in ways:
        ranges = here.ranges(way.height)
        if limit < NEVER and here.ground.ladder.least_work(ranges) > here.ground.room_within(
            limit - 1, here.slots
        ):
            continue
        built = here.build(way, ranges)
        if built is None:
            homeless.add(way.height)
        elif best is None or built.time_ns < best[1].time_ns:
            best = way, built
            limit = min(limit, built.time_ns)
    return best, homeless


def _promising(heights: tuple[float, ...], best: float, homeless: set[float]) -> tuple[float, ...]:
    """Heights for the next number of slots: the best one, its neighbours, and those that found no room."""
    at = heights.index(best)
    return tuple(h for k, h in enumerate(heights) if abs(k - at) <= 1 or h in homeless)


def slot_counts(problem: Problem) -> Iterator[int]:
    """Numbers of slots to try: from the fewest that hold the tokens upwards, or the one that is asked for."""
    if problem.micro_batches is not None:
        yield problem.micro_batches
        return
    least = max(1, -(-int(problem.num_tokens.sum()) // int(problem.max_tokens.sum())))
    slots = least
    while slots <= max(len(problem), 1) + least:
        yield slots
        # A pipeline wants many short micro-batches; otherwise the first counts that fit are the best.
        slots += 1 if problem.topology.pipeline_stages == 1 else max(1, slots // 4)


def _shelve(ground: Ground, slots: int, mean_ns: int, ranges: Ints) -> Shelf | None:
    """Wide groups in their slots, or None where a sample finds no room."""
    problem, ladder, blocks = ground.problem, ground.ladder, ground.blocks
    taken = np.zeros((slots, problem.ranks), np.bool_)
    height = np.full(slots, mean_ns)
    batch_of, slot, block, free, cost = shelve(
        ranges, problem.num_tokens, ladder.time_ns, ladder.fixed_ns, ladder.degrees, blocks.starts,
        blocks.bounds, blocks.room, height, taken, WINDOW,
    )  # fmt: skip
    if batch_of.size < ranges[0]:
        return None
    return Shelf(batch_of=batch_of, slot=slot, block=block, free=free, cost=cost, height=height, taken=taken)


def _fill(ground: Ground, shelf: Shelf, way: Way) -> Built | None:
    """The whole layout, or None where a sample finds no room or time passes 64 bits."""
    problem, ladder, blocks = ground.problem, ground.ladder, ground.blocks
    times = problem.times_ns()
    batch_of, slot, block = kernels.fill_slots(
        problem.num_tokens, times, ladder.fixed_ns, ladder.degrees, blocks.starts, blocks.bounds, blocks.room,
        blocks.pace, SPEED_UNIT, shelf.batch_of, shelf.slot, shelf.block, shelf.free, shelf.cost,
        shelf.height, shelf.taken, ground.short, way.riders, way.tight, DENSE,
    )  # fmt: skip
    if batch_of.size == 0:
        return None
    if not ground.safe:
        return _slowly_timed(ground, batch_of, slot, block)
    meet, counted = problem.sync == "micro_batch", slots_counted(problem, slot)
    time_ns = kernels.step_time(
        batch_of, slot, block, blocks.starts, blocks.degree, ground.level, times, ladder.fixed_ns,
        ground.pace, SPEED_UNIT, meet, counted, problem.fixed_ns(1), problem.topology.pipeline_stages - 1,
    )  # fmt: skip
    return Built(batch_of=batch_of, slot=slot, block=block, time_ns=int(time_ns))


def _slowly_timed(ground: Ground, batch_of: Ints, slot: Ints, block: Ints) -> Built | None:
    built = Built(batch_of=batch_of, slot=slot, block=block, time_ns=0)
    try:
        time_ns = objective_ns(ground.problem, ground.layout(built))
    except TooLong:
        return None
    return Built(batch_of=batch_of, slot=slot, block=block, time_ns=time_ns)
