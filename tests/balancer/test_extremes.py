"""Costs, caps and clusters far from any real one: a right plan or a sentence, and no warning on the way."""

import warnings

import numpy as np
import pytest

from balancer import POLICIES, CostModel, StepPlan, Topology, check_plan, plan_step
from balancer.cost import Communication
from balancer.planning import nested, search
from balancer.planning.longest import TooLong

UNIT = "check their unit"


def laws_of(step):
    return {name: step[name] for name in ("max_tokens", "cost", "cp_degrees", "topology")}


def random_step(seed):
    """(lengths, arguments): costs from denormals to 1e300 seconds, unlike caps and speeds, empty ranks."""
    rng = np.random.default_rng(seed)
    ranks = int(rng.choice([1, 2, 3, 4, 6, 8]))
    degrees = sorted({int(d) for d in rng.choice([1, 1, 2, 3, 4, 8], 3) if d <= ranks}) or [1]
    cap = int(rng.choice([2, 64, 1000, 16_384, 2**31 - 1, 2**40]))
    caps = [max(1, int(cap * share)) for share in rng.uniform(0, 1, ranks)] if rng.random() < 0.3 else cap
    coefficients = rng.choice([0.0, 5e-324, 1e-200, 1e-9, 1e-6, 1e-4, 1.0, 1e6, 1e30, 1e300], 3)
    if rng.random() < 0.7:
        coefficients = [rng.choice([1e-6, 1e-4]), rng.choice([0, 1e-10, 1e-8]), rng.choice([0, 0.5, 1e5])]
    linear, quadratic, fixed = (float(coefficient) for coefficient in coefficients)
    link = None
    if rng.random() < 0.3:
        link = Communication(bytes_per_token=float(rng.choice([1e5, 1e30])), intra_node=1e9, inter_node=1e9)
    longest = min(max(degrees) * int(np.min(caps)), 2**31 - 1)
    lengths = np.exp(
        rng.uniform(0, np.log(max(longest - 2 * ranks, 1) + 1e-9), int(rng.choice([1, 8, 60, 150])))
    )
    speeds = [None, 10.0 ** rng.uniform(-3, 3, ranks), rng.choice([1e-3, 1.0, 1e3], ranks)]
    return np.maximum(lengths, 1).astype(np.int64), {
        "topology": Topology(
            ranks,
            ranks_per_node=[None, int(rng.integers(1, ranks + 1))][rng.integers(2)],
            speed=speeds[rng.integers(3)],
            pipeline_stages=int(rng.choice([1, 1, 4, 1000])),
        ),
        "max_tokens": caps,
        "cost": CostModel(linear or 1e-6, quadratic, fixed, communication=link),
        "cp_degrees": degrees,
        "micro_batches": [None, None, 40][rng.integers(3)],
    }


def planned_or_told(lengths, step):
    """The plan, or the sentence of its refusal; a warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return plan_step(lengths, **step)
        except (ValueError, OverflowError) as refusal:
            return str(refusal)


@pytest.mark.parametrize("part", range(4))
def test_an_absurd_step_gets_a_right_plan_or_a_sentence(part):
    planned = 0
    for seed in range(12 * part, 12 * part + 12):
        lengths, step = random_step(seed)
        for sync in ("step", "micro_batch"):
            plans = {
                policy: planned_or_told(lengths, step | {"sync": sync, "policy": policy})
                for policy in POLICIES
            }
            made = {policy: plan for policy, plan in plans.items() if isinstance(plan, StepPlan)}
            for plan in made.values():
                check_plan(plan, lengths, **laws_of(step))
            told = [refusal for refusal in plans.values() if isinstance(refusal, str)]
            assert all(sentence.endswith(".") and len(sentence) > 60 for sentence in told)
            assert not made or "balanced" in made
            planned += len(made)
    assert planned > 20


@pytest.mark.parametrize("fixed", [1e10, 1e300, 1.7e308])
def test_a_micro_batch_of_decades_gets_a_sentence(fixed):
    for policy in POLICIES:
        with pytest.raises(TooLong, match=UNIT):
            plan_step(
                [5, 9], topology=Topology(2), max_tokens=16, cost=CostModel(1e-4, fixed=fixed), policy=policy
            )


def test_a_negative_fixed_cost_gets_a_sentence():
    class Wrong:
        def nanoseconds(self, lengths, cp_degree=1):
            return np.asarray(lengths) * 1000

        def fixed_nanoseconds(self, cp_degree=1):
            return -5

    with pytest.raises(ValueError, match="the model gives -5 ns for every micro-batch"):
        plan_step([5, 9], topology=Topology(2), max_tokens=16, cost=Wrong())


def test_one_division_beyond_36_years_leaves_the_others():
    """One chain of degrees ends too late, another in time."""
    step = {
        "topology": Topology(8, pipeline_stages=1000),
        "max_tokens": 200_000_000,
        "cost": CostModel(1e-4, 1e-10, 1e-3),
        "cp_degrees": (1, 5, 6),
    }
    lengths = np.array([175_483_679])
    plan = plan_step(lengths, **step)
    check_plan(plan, lengths, **laws_of(step))
    with pytest.raises(TooLong):
        plan_step(lengths, **{**step, "cp_degrees": (1,)})


def test_a_padded_division_that_wins_is_not_padded():
    """Through many stages short micro-batches are best, and padding makes short ones."""
    for seed in range(12):
        lengths = np.exp(np.random.default_rng(seed).uniform(0, np.log(998), 150)).astype(np.int64)
        step = {
            "topology": Topology(4, pipeline_stages=1000),
            "max_tokens": 1000,
            "cost": CostModel(1e-6),
            "cp_degrees": (1,),
        }
        plan = plan_step(lengths, micro_batches=54, **step)
        check_plan(plan, lengths, **laws_of(step))


def test_fast_ranks_and_many_stages_pass_the_check():
    topology = Topology(2, speed=[1000.0, 700.0], pipeline_stages=1000)
    step = {"topology": topology, "max_tokens": 100, "cost": CostModel(1e-3), "cp_degrees": (1,)}
    plan = plan_step([50, 60, 70], **step)
    check_plan(plan, [50, 60, 70], **laws_of(step))


def test_where_no_chain_of_degrees_holds_the_step_slots_may(monkeypatch):
    monkeypatch.setattr(nested, "divide", lambda problem: [])
    step = {"topology": Topology(4), "max_tokens": 100, "cost": CostModel(1e-3), "cp_degrees": (1, 2)}
    lengths = [150, 40, 30]
    check_plan(plan_step(lengths, **step), lengths, **laws_of(step))


def test_an_empty_step_is_planned_on_a_slow_cluster_too():
    step = {"topology": Topology(2, speed=[1e-3, 1.0], pipeline_stages=1000), "max_tokens": 16}
    assert plan_step([], cost=CostModel(1e-4, fixed=1e6), **step).time_s == 0
    with pytest.raises(TooLong, match=UNIT):
        plan_step([], cost=CostModel(1e-4, fixed=1e300), **step)


def test_a_search_that_ends_beyond_64_bits_leaves_the_plan_as_it_was(monkeypatch):
    step = {"topology": Topology(4), "max_tokens": 100, "cost": CostModel(1e-3, 1e-5), "cp_degrees": (1, 2)}
    lengths = np.array([90, 80, 70, 60, 50])
    plain = plan_step(lengths, effort=0, **step)
    timed, calls = search.objective_ns, []

    def refuse_trials(problem, layout):
        calls.append(layout)
        if len(calls) > 1:
            raise TooLong
        return timed(problem, layout)

    monkeypatch.setattr(search, "objective_ns", refuse_trials)
    assert plan_step(lengths, **step).digest() == plain.digest()
    assert len(calls) == 2
