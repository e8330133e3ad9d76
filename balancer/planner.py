"""The front: one step's lengths in, its plan out; and the same for the steps to come, in the background."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

from numpy.typing import ArrayLike

from balancer.bounds import lower_bound_ns
from balancer.plan import StepPlan
from balancer.planning import alone
from balancer.planning.counts import check_count
from balancer.planning.layout import empty_layout, make_plan, slots_of
from balancer.planning.longest import check_fixed, check_total
from balancer.planning.problem import Cost, Ints, Problem, make_setting, with_samples
from balancer.planning.samples import at_most, check_max_samples
from balancer.policies import POLICIES
from balancer.topology import Topology
from packing.checks import check_choice
from packing.table import SampleTable


def plan_step(
    table_or_lengths: SampleTable | ArrayLike,
    *,
    topology: Topology,
    max_tokens: int | Sequence[int] | Ints,
    cost: Cost,
    cp_degrees: Sequence[int] = (1,),
    sync: str = "step",
    micro_batches: int | None = None,
    policy: str = "balanced",
    seed: int = 0,
    min_length: Mapping[int, int] | None = None,
    slots_multiple_of: int = 1,
    effort: int | None = None,
    max_samples: int | None = None,
) -> StepPlan:
    """Divide one step's samples over the ranks.

    Args:
        table_or_lengths: the step's samples, or [S] their lengths in tokens.
        topology: ranks, nodes, speeds and pipeline stages.
        max_tokens: tokens that one rank can hold in one micro-batch, or [R] one number for each rank.
        cost: predicted time, see `balancer.CostModel`.
        cp_degrees: how many neighbouring ranks may share a micro-batch. See also
            `balancer.topology.ulysses_degrees`.
        sync: ``"step"``: ranks meet once a step; ``"micro_batch"``: they meet in every slot.
        micro_batches: slots that every rank runs; ``None``: as many as the plan needs. Ranks with fewer
            micro-batches run dummies, which the plan does not list.
        policy: one of `balancer.POLICIES`.
        seed: start of the local search's random numbers.
        min_length: shortest sample that a degree may take, where kernels lose on short pieces. Wider degrees
            take nothing shorter than narrower ones do.
        slots_multiple_of: the number of slots is rounded up to a multiple of this, as interleaved pipelines
            need.
        effort: trials of the local search, which runs on steps of at most 96 samples and stops at a gap of
            0.1 %; ``None``: 4,000, about 1 ms, or 40,000 where at most 16 samples have several degrees. It
            is counted in trials, not in seconds, so that every rank stops at the same plan.
        max_samples: samples that a micro-batch may hold; those with more are cut, on the ranks that had them.

    A step without samples gets a plan without micro-batches, as every empty input of this package is legal:
    its bound, ``gap`` and ``rank_time_s`` are 0, and it takes no time but that of the dummies in the slots
    that ``micro_batches`` asks for.

    Equal arguments give an equal plan on every rank, platform and thread: decisions are made on whole
    nanoseconds. A micro-batch's ``cost_s`` is that of its true lengths; alignment padding counts against
    ``max_tokens`` only. A rank may be left empty. In a slot of ``sync="micro_batch"`` a rank without a
    micro-batch runs a dummy, which takes the fixed cost.

    Raises:
        ValueError: an argument out of its range, or samples that no allowed degree can hold.
    """
    setting = _setting(
        policy=policy,
        topology=topology,
        max_tokens=max_tokens,
        cost=cost,
        cp_degrees=cp_degrees,
        sync=sync,
        micro_batches=micro_batches,
        seed=seed,
        min_length=min_length,
        slots_multiple_of=slots_multiple_of,
        effort=effort,
    )
    return _plan(setting, table_or_lengths, policy, max_samples)


def _setting(*, policy: str, **arguments: Any) -> Problem:
    """What the steps of a run share, checked."""
    check_choice("policy", policy, POLICIES)
    setting = make_setting(**arguments)
    check_fixed(setting)
    return setting


def _plan(
    setting: Problem, table_or_lengths: SampleTable | ArrayLike, policy: str, max_samples: int | None
) -> StepPlan:
    problem = with_samples(setting, table_or_lengths)
    check_total(problem)
    if len(problem) == 0:
        return make_plan(problem, empty_layout(), lower_bound_ns=0, policy=policy)
    layout = POLICIES[policy](problem)
    if max_samples is not None:
        layout = at_most(layout, check_max_samples(max_samples))
    needed = 0 if problem.micro_batches is None else slots_of(problem, layout)[1]
    if problem.micro_batches is not None and needed > problem.micro_batches:
        limit = "" if max_samples is None else f" with max_samples={max_samples}"
        raise ValueError(
            f"policy {policy!r}{limit} needs {needed} micro_batches a rank for this step, more than the "
            f"{problem.micro_batches} that are asked for. Allow more, leave their number free, or use "
            "policy='balanced'."
        )
    plan = alone.make_plan(problem, layout, policy)
    return plan or make_plan(problem, layout, lower_bound_ns=lower_bound_ns(problem), policy=policy)


@dataclass(frozen=True, kw_only=True)
class Planner:
    """`plan_step` with its arguments bound, and plans made ahead of the steps that run.

    Every rank holds one and feeds it the same steps; the plans are equal without talking.
    """

    topology: Topology
    max_tokens: int | Sequence[int] | Ints
    cost: Cost
    cp_degrees: Sequence[int] = (1,)
    sync: str = "step"
    micro_batches: int | None = None
    policy: str = "balanced"
    seed: int = 0
    min_length: Mapping[int, int] = field(default_factory=dict)
    slots_multiple_of: int = 1
    max_samples: int | None = None
    effort: int | None = None
    """Deadline of a step's plan, in trials of the local search after the first feasible plan."""

    def __call__(self, table_or_lengths: SampleTable | ArrayLike) -> StepPlan:
        """The plan of one step."""
        return _plan(self._checked, table_or_lengths, self.policy, self.max_samples)

    @cached_property
    def _checked(self) -> Problem:
        return _setting(
            topology=self.topology,
            max_tokens=self.max_tokens,
            cost=self.cost,
            cp_degrees=self.cp_degrees,
            sync=self.sync,
            micro_batches=self.micro_batches,
            policy=self.policy,
            seed=self.seed,
            min_length=self.min_length,
            slots_multiple_of=self.slots_multiple_of,
            effort=self.effort,
        )

    def ahead(self, steps: Iterable[SampleTable | ArrayLike], *, look_ahead: int = 2) -> Iterator[StepPlan]:
        """Plans of ``steps`` in their order, up to ``look_ahead`` of them made before they are asked for.

        One background thread plans, without Python's global lock inside the kernels. ``steps`` is read in
        the caller's thread. An error in a step is raised where its plan is asked for. Leaving the loop
        early drops the plans that nobody asked for.

        Raises:
            ValueError: look_ahead below 1.
        """
        return self._ahead(iter(steps), check_count("look_ahead", look_ahead))

    def _ahead(self, steps: Iterator[SampleTable | ArrayLike], look_ahead: int) -> Iterator[StepPlan]:
        stop = threading.Event()

        def work(table_or_lengths: SampleTable | ArrayLike) -> StepPlan | None:
            return None if stop.is_set() else self(table_or_lengths)

        with ThreadPoolExecutor(1, thread_name_prefix="evenload-planner") as thread:
            pending: list[Future[StepPlan | None]] = [
                thread.submit(work, s) for s in islice(steps, look_ahead)
            ]
            try:
                while pending:
                    plan = pending.pop(0).result()
                    pending.extend(thread.submit(work, s) for s in islice(steps, 1))
                    assert plan is not None
                    yield plan
            finally:
                stop.set()
