"""Which samples can run at all, and whether a plan keeps its laws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from balancer.plan import StepPlan
from balancer.planning.problem import Cost, Ints, check_lengths, make_problem, padded
from balancer.topology import Topology
from packing.table import SampleTable


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Admission:
    """Which samples can run at all. Axis: A = samples that no allowed degree can hold."""

    rows: Ints
    """[A] their rows in the table, rising."""
    num_tokens: Ints
    """[A] their tokens."""
    longest: int
    """Tokens of the longest sample that fits."""
    by_degree: Mapping[int, int]
    """Samples by the smallest degree whose memory holds them."""

    @property
    def ok(self) -> bool:
        """Whether every sample fits."""
        return self.rows.size == 0

    def __str__(self) -> str:
        """One sentence for a log."""
        degrees = ", ".join(f"degree {d}: {count}" for d, count in self.by_degree.items())
        if self.ok:
            return f"all samples fit ({degrees})"
        shown = ", ".join(
            f"row {row} ({n} tokens)" for row, n in zip(self.rows[:5], self.num_tokens[:5], strict=True)
        )
        more = f" and {self.rows.size - 5} more" if self.rows.size > 5 else ""
        return (
            f"{self.rows.size} samples fit no allowed degree: {shown}{more}; at most {self.longest} "
            f"tokens fit. The others need {degrees}. Raise max_tokens, allow larger cp_degrees, or drop or "
            "split such samples."
        )


def admission(
    table_or_lengths: SampleTable | ArrayLike,
    *,
    topology: Topology,
    max_tokens: int | Sequence[int] | Ints,
    cp_degrees: Sequence[int] = (1,),
    min_length: Mapping[int, int] | None = None,
) -> Admission:
    """Before step 0: the samples that no allowed degree can hold, and what degrees the others need.

    Raises:
        ValueError: an argument out of its range, or a length outside ``1..2**31 - 1``.
    """
    problem = make_problem(
        table_or_lengths, topology=topology, max_tokens=max_tokens, cost=_NoCost(), cp_degrees=cp_degrees,
        sync="step", micro_batches=None, seed=0, min_length=min_length, check_fits=False,
    )  # fmt: skip
    homeless = problem.homeless()
    homeless = homeless[np.argsort(problem.rows[homeless])]
    fits = np.ones(len(problem), np.bool_)
    fits[homeless] = False
    by_degree: dict[int, int] = {}
    unseen = fits.copy()
    for degree, short in zip(problem.cp_degrees, problem.first_too_short().tolist(), strict=True):
        here = np.zeros(len(problem), np.bool_)
        here[problem.first_that_fits(degree) : short] = True
        by_degree[degree] = int(np.count_nonzero(here & unseen))
        unseen &= ~here
    return Admission(
        rows=problem.rows[homeless],
        num_tokens=problem.num_tokens[homeless],
        longest=int(problem.num_tokens[fits].max(initial=0)),
        by_degree=by_degree,
    )


class _NoCost:
    """A cost for questions that are about memory alone."""

    def nanoseconds(self, lengths: ArrayLike, cp_degree: int = 1) -> Ints:
        return np.zeros(np.shape(lengths), np.int64)

    def fixed_nanoseconds(self, cp_degree: int = 1) -> int:
        return 0


def check_plan(
    plan: StepPlan,
    table_or_lengths: SampleTable | ArrayLike,
    *,
    max_tokens: int | Sequence[int] | Ints,
    cost: Cost | None = None,
    cp_degrees: Sequence[int] | None = None,
    topology: Topology | None = None,
) -> None:
    """Check a plan against the laws that every plan keeps; an independent reading, made to be obvious.

    Args:
        plan: from `balancer.plan_step`, from bytes, or from elsewhere.
        table_or_lengths: the step that it divides.
        max_tokens: tokens that a rank holds, or [R] one number for each rank.
        cost: the model that ``cost_s`` must follow; ``None``: not checked.
        cp_degrees: allowed degrees; ``None``: not checked.
        topology: with ``cost``, whose speeds and stages ``rank_time_s`` and ``time_s`` must follow; ``None``:
            not checked.

    Raises:
        ValueError: names the first law that is broken, and where.
    """
    lengths = check_lengths(table_or_lengths)
    capacity = np.broadcast_to(np.asarray(max_tokens, np.int64), (plan.ranks,))
    _check_samples(plan, lengths)
    _check_groups(plan, cp_degrees)
    _check_tokens(plan, lengths, capacity)
    _check_slots(plan)
    if cost is not None:
        _check_costs(plan, lengths, cost)
        if topology is not None:
            _check_times(plan, topology, cost.fixed_nanoseconds(1) * 1e-9)
    if not 0 <= plan.lower_bound_s <= plan.time_s:
        raise _broken(
            "the lower bound is not above the step time",
            f"{plan.lower_bound_s} s against {plan.time_s} s",
        )


def _broken(law: str, found: str) -> ValueError:
    return ValueError(f"the plan breaks the law that {law}: {found}.")


def _check_samples(plan: StepPlan, lengths: Ints) -> None:
    batches = plan.micro_batches
    law = "every sample stands in exactly one micro-batch"
    counts = np.bincount(batches.order[batches.order >= 0], minlength=lengths.size)
    if batches.order.min(initial=0) < 0 or counts.size > lengths.size:
        raise _broken(law, f"it names samples outside 0..{lengths.size - 1}")
    wrong = np.flatnonzero(counts != 1)
    if wrong.size:
        raise _broken(
            law, f"sample {wrong[0]} stands in {counts[wrong[0]]}, and {wrong.size - 1} others are wrong too"
        )
    offsets = batches.offsets
    if offsets.size != len(batches) + 1 or offsets[0] or offsets[-1] != lengths.size:
        raise _broken(
            "offsets bound every micro-batch's samples", f"they run from {offsets[0]} to {offsets[-1]}"
        )
    empty = np.flatnonzero(np.diff(offsets) <= 0)
    if empty.size:
        raise _broken("no micro-batch is empty", f"micro-batch {empty[0]} holds no sample")


def _check_groups(plan: StepPlan, cp_degrees: Sequence[int] | None) -> None:
    batches = plan.micro_batches
    for m, (first, degree) in enumerate(
        zip(batches.first_rank.tolist(), batches.cp_degree.tolist(), strict=True)
    ):
        where = f"micro-batch {m} runs on ranks {first}..{first + degree - 1} of {plan.ranks}"
        if degree < 1 or first < 0 or first + degree > plan.ranks:
            raise _broken("groups lie within the ranks", where)
        if first % degree:
            raise _broken("groups start at a multiple of their degree", where)
        if cp_degrees is not None and degree not in cp_degrees:
            raise _broken(f"degrees are among {tuple(cp_degrees)}", where)


def _check_tokens(plan: StepPlan, lengths: Ints, capacity: Ints) -> None:
    batches = plan.micro_batches
    for m, (first, degree) in enumerate(
        zip(batches.first_rank.tolist(), batches.cp_degree.tolist(), strict=True)
    ):
        tokens = padded(lengths[batches.samples(m)], degree)
        expected = tokens.max() * tokens.size if plan.policy == "padded" else tokens.sum()
        if batches.tokens[m] != expected:
            raise _broken(
                "tokens counts the samples with their padding",
                f"micro-batch {m} says {batches.tokens[m]}, its samples have {expected}",
            )
        room = degree * capacity[first : first + degree].min()
        if batches.tokens[m] > room:
            raise _broken(
                "no micro-batch exceeds its cap",
                f"micro-batch {m} has {batches.tokens[m]} tokens on {degree} ranks that hold {room}",
            )


def _check_slots(plan: StepPlan) -> None:
    batches = plan.micro_batches
    if batches.slot.size and (batches.slot.min() < 0 or batches.slot.max() >= plan.num_slots):
        raise _broken(
            f"slots are 0..{plan.num_slots - 1}",
            f"they run from {batches.slot.min()} to {batches.slot.max()}",
        )
    # All members meet a micro-batch in its slot and a rank has one a slot: the lowest slot that is not
    # done can always run, so that no cycle of waits forms.
    for rank in range(plan.ranks):
        mine = plan.for_rank(rank)
        repeated = np.flatnonzero(np.diff(batches.slot[mine]) <= 0)
        if repeated.size:
            slot = batches.slot[mine[repeated[0]]]
            raise _broken("a rank runs one micro-batch in a slot", f"rank {rank} has two in slot {slot}")


def _check_costs(plan: StepPlan, lengths: Ints, cost: Cost) -> None:
    batches = plan.micro_batches
    for m, degree in enumerate(batches.cp_degree.tolist()):
        samples = lengths[batches.samples(m)]
        if plan.policy == "padded":
            samples = np.full_like(samples, samples.max())
        expected = int(cost.nanoseconds(samples, degree).sum()) + cost.fixed_nanoseconds(degree)
        if abs(batches.cost_s[m] * 1e9 - expected) > 1 + 1e-9 * expected:
            raise _broken(
                "cost_s follows the cost model",
                f"micro-batch {m} says {batches.cost_s[m]} s, the model {expected * 1e-9} s",
            )


def _check_times(plan: StepPlan, topology: Topology, idle_s: float) -> None:
    """Let every rank run its list. Each later stage of a pipeline takes its largest micro-batch once more."""
    if topology.ranks != plan.ranks:
        raise _broken("it divides the step over all ranks", f"{plan.ranks} of {topology.ranks}")
    pace = np.ones(plan.ranks) if topology.speed is None else 1.0 / topology.speed
    # Paces are counted in 2**-16 parts, which describes the fastest ranks to 2 %.
    near = 1e-9 if topology.speed is None else 0.02
    batches, later = plan.micro_batches, topology.pipeline_stages - 1
    busy, largest, free = np.zeros(plan.ranks), np.zeros(plan.ranks), np.zeros(plan.ranks)
    slots = np.zeros(plan.num_slots)
    idle = np.ones((plan.num_slots, plan.ranks), np.bool_)
    for m in np.argsort(batches.slot, kind="stable").tolist():
        group = slice(int(batches.first_rank[m]), int(batches.first_rank[m] + batches.cp_degree[m]))
        slot, took = int(batches.slot[m]), float(batches.cost_s[m] * pace[group].max())
        busy[group] += took
        largest[group] = np.maximum(largest[group], took)
        free[group] = free[group].max() + took
        slots[slot] = max(slots[slot], took)
        idle[slot, group] = False
    if plan.sync == "step":
        time_s = float((free + later * largest).max())
    else:
        slots = np.maximum(slots, (idle * pace * idle_s).max(axis=1, initial=0.0))
        time_s = float(slots.sum() + later * slots.max(initial=0.0))
    rank_time = busy + later * largest
    wrong = np.flatnonzero(np.abs(plan.rank_time_s - rank_time) > 1e-6 + near * rank_time)
    if wrong.size:
        rank = int(wrong[0])
        raise _broken(
            "rank_time_s sums the micro-batches of each rank",
            f"rank {rank} says {plan.rank_time_s[rank]} s, they take {rank_time[rank]} s",
        )
    if abs(plan.time_s - time_s) > 1e-6 + near * time_s:
        raise _broken("time_s is when the last rank ends", f"it says {plan.time_s} s, that is {time_s} s")
