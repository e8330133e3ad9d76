"""The front: determinism, look-ahead, admission, check_plan and sentences for bad input."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from balancer import POLICIES, CostModel, Planner, Topology, admission, check_plan, plan_step

COST = CostModel(linear=2e-4, quadratic=1e-8, fixed=0.05)


def lengths_of(seed, n=400, longest=4000):
    rng = np.random.default_rng(seed)
    return np.clip(np.exp(rng.normal(6.5, 1.2, n)), 1, longest).astype(np.int64)


def fingerprint(plan):
    """Every bit of a plan."""
    columns = [getattr(plan.micro_batches, name) for name in plan.micro_batches.__slots__]
    data = b"".join(np.ascontiguousarray(c).tobytes() for c in [*columns, plan.rank_time_s])
    return hashlib.sha256(data + repr((plan.time_s, plan.lower_bound_s, plan.num_slots)).encode()).hexdigest()


SETTINGS = [
    {"sync": sync, "cp_degrees": degrees, "n": n}
    for sync in ("step", "micro_batch")
    for degrees in ((1,), (1, 2, 4))
    for n in (40, 400)
]


def make(setting):
    return fingerprint(
        plan_step(
            lengths_of(7, setting["n"], 1000 * max(setting["cp_degrees"])),
            topology=Topology(8, ranks_per_node=4),
            max_tokens=1024,
            cost=COST,
            cp_degrees=setting["cp_degrees"],
            sync=setting["sync"],
        )
    )


def test_equal_inputs_give_the_same_bits_on_many_threads_and_in_another_process():
    here = [make(setting) for setting in SETTINGS]
    assert len(set(here)) == len(here)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            assert list(threads.map(make, SETTINGS)) == here
    code = "from tests.balancer.test_planner import *; print(*[make(s) for s in SETTINGS])"
    for count in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={"NUMBA_NUM_THREADS": count, "PYTHONHASHSEED": count, "PATH": "/usr/bin:/bin"},
        )
        assert there.stdout.split() == here


def test_another_seed_may_change_the_plan_but_never_its_laws():
    for seed in range(5):
        step = lengths_of(3, 30)
        plan = plan_step(step, topology=Topology(4), max_tokens=4096, cost=COST, seed=seed)
        check_plan(plan, step, max_tokens=4096, cost=COST)


def test_plans_made_ahead_equal_plans_made_at_once():
    planner = Planner(topology=Topology(4), max_tokens=4096, cost=COST)
    steps = [lengths_of(seed) for seed in range(7)]
    ahead = list(planner.ahead(steps, look_ahead=3))
    assert [fingerprint(p) for p in ahead] == [fingerprint(planner(s)) for s in steps]


class Asked(CostModel):
    """Counts how often it is asked for a topology's model, which is part of checking arguments."""

    times = 0

    def for_topology(self, topology):
        Asked.times += 1
        return super().for_topology(topology)


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_planner_checks_its_arguments_once_and_plans_as_plan_step_does(ranks):
    Asked.times = 0
    arguments = {"topology": Topology(ranks), "max_tokens": 4096, "max_samples": 20, "slots_multiple_of": 2}
    planner = Planner(cost=Asked(1e-6, 1e-9, 1e-3), **arguments)
    plans = [planner(lengths_of(seed)) for seed in range(5)]
    assert Asked.times == 1
    alone = [plan_step(lengths_of(seed), cost=CostModel(1e-6, 1e-9, 1e-3), **arguments) for seed in range(5)]
    assert [plan.to_bytes() for plan in plans] == [plan.to_bytes() for plan in alone]


def test_a_planner_names_a_wrong_argument_with_its_first_step():
    planner = Planner(topology=Topology(4), max_tokens=0, cost=COST)
    with pytest.raises(ValueError, match="max_tokens must be a whole number of at least 1"):
        planner([10])


def test_the_planner_works_ahead_in_one_background_thread_and_stops_with_its_reader():
    drawn = []

    def steps():
        for seed in range(100):
            drawn.append(threading.current_thread().name)
            yield lengths_of(seed)

    before = set(threading.enumerate())
    plans = Planner(topology=Topology(4), max_tokens=4096, cost=COST).ahead(steps(), look_ahead=2)
    next(plans)
    next(plans)
    assert 2 <= len(drawn) <= 5
    assert set(drawn) == {threading.current_thread().name}
    # only this planner's: threads that other tests left in the process come and go
    made = {t for t in threading.enumerate() if t.name.startswith("evenload-planner")} - before
    assert len(made) == 1
    plans.close()
    assert not any(thread.is_alive() for thread in made)


def test_an_error_in_a_step_comes_where_its_plan_is_asked_for():
    plans = Planner(topology=Topology(4), max_tokens=100, cost=COST).ahead([[10], [5000], [10]])
    assert next(plans).time_s > 0
    with pytest.raises(ValueError, match="row 0 has 5000"):
        next(plans)


def test_more_effort_never_makes_a_plan_slower():
    for seed in range(8):
        step = lengths_of(seed, 20)
        times = [
            plan_step(
                step, topology=Topology(4), max_tokens=4096, cost=COST, cp_degrees=(1, 2), effort=effort
            ).time_s
            for effort in (0, 20_000)
        ]
        assert times[1] <= times[0]


def test_admission_lists_what_no_degree_can_hold():
    lengths = [3000, 4096, 5000, 9000, 33000, 70000]
    found = admission(lengths, topology=Topology(16), max_tokens=4096, cp_degrees=(1, 2, 4, 8, 16))
    assert found.rows.tolist() == [5]
    assert found.num_tokens.tolist() == [70000]
    assert dict(found.by_degree) == {1: 2, 2: 1, 4: 1, 8: 0, 16: 1}
    assert found.longest == 33000
    assert not found.ok
    assert "row 5 (70000 tokens)" in str(found)
    assert admission(lengths[:5], topology=Topology(16), max_tokens=4096, cp_degrees=(1, 16)).ok
    on_eight = admission(lengths, topology=Topology(8), max_tokens=4096, cp_degrees=(1, 2, 4, 8))
    assert on_eight.rows.tolist() == [4, 5]


BAD = [
    ({"table_or_lengths": [1, 2**31]}, r"row 1 has 2147483648"),
    ({"table_or_lengths": [5, 0]}, r"row 1 has 0"),
    ({"table_or_lengths": [5, -3]}, r"row 1 has -3"),
    ({"table_or_lengths": [5, float("nan")]}, r"row 1 has .*nan"),
    ({"table_or_lengths": [[1, 2]]}, r"one row of whole numbers"),
    ({"table_or_lengths": [50, 101]}, r"1 of 2 samples fit no allowed degree.*row 1 has 101"),
    ({"cp_degrees": (1, 8)}, r"degree 8 needs 8 ranks, the topology has 4"),
    ({"cp_degrees": ()}, r"cp_degrees must hold"),
    ({"cp_degrees": (0,)}, r"cp_degrees must hold"),
    ({"max_tokens": 0}, r"max_tokens must be"),
    ({"max_tokens": [100, 100]}, r"one for each of the 4 ranks"),
    ({"sync": "never"}, r"sync must be"),
    ({"micro_batches": 0}, r"micro_batches must be"),
    ({"micro_batches": 1, "table_or_lengths": [60] * 9}, r"no plan with 1 micro_batches"),
    ({"policy": "best"}, r"policy must be one of padded"),
    ({"min_length": {3: 5}}, r"min_length must map degrees"),
    ({"slots_multiple_of": 0}, r"slots_multiple_of must be"),
    ({"effort": -1}, r"effort must be"),
    ({"micro_batches": True}, r"micro_batches must be a whole number of at least 1 or None, got True"),
    ({"micro_batches": float("nan")}, r"micro_batches must be .* got nan"),
    ({"slots_multiple_of": "2"}, r"slots_multiple_of must be .* got '2'"),
    ({"effort": float("inf")}, r"effort must be a whole number of at least 0 or None, got inf"),
    ({"max_samples": [3]}, r"max_samples must be .* or None, got \[3\]"),
    ({"cp_degrees": [True]}, r"cp_degrees must hold whole numbers.* got \(True,\)"),
    ({"cp_degrees": [1, None]}, r"such as \(1, 2, 4\), got \(1, None\)"),
    ({"min_length": [5]}, r"min_length must map degrees.*such as \{1: 4096\}, got \[5\]"),
    ({"min_length": {1: 1.5}}, r"min_length must map"),
    ({"policy": ["balanced"]}, r"policy must be one of"),
    ({"sync": None}, r"sync must be one of"),
    ({"table_or_lengths": [[1], [2, 3]]}, r"got \[\[1\], \[2, 3\]\]. Give a list"),
    ({"table_or_lengths": None}, r"Give a list or an array of ints"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD)
def test_bad_input_gets_a_sentence(change, sentence):
    step = {"table_or_lengths": [10, 20], "topology": Topology(4), "max_tokens": 100, "cost": COST}
    with pytest.raises(ValueError, match=sentence):
        plan_step(**(step | change))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"topology": 4}, r"such as Topology\(ranks=8\), got 4"),
        ({"cost": "generic"}, r"CostModel\.preset\(name\).* got 'generic'"),
        ({"cp_degrees": 2}, r"such as \(1, 2, 4\), got 2"),
    ],
)
def test_a_number_or_a_name_in_place_of_an_object_gets_a_sentence(change, sentence):
    step = {"table_or_lengths": [10, 20], "topology": Topology(4), "max_tokens": 100, "cost": COST}
    with pytest.raises(TypeError, match=sentence):
        plan_step(**(step | change))


@pytest.mark.parametrize("degrees", ["12", b"x"])
def test_degrees_are_no_text(degrees):
    with pytest.raises(TypeError, match=r"cp_degrees must hold the allowed degrees"):
        plan_step([10], topology=Topology(4), max_tokens=100, cost=COST, cp_degrees=degrees)


def test_degrees_come_in_any_order_and_any_number_of_times():
    step = {"topology": Topology(4), "max_tokens": 100, "cost": COST}
    plans = [plan_step([190, 20], cp_degrees=degrees, **step) for degrees in ([4, 2, 1, 2], (1, 2, 4))]
    assert plans[0].digest() == plans[1].digest()


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_an_empty_step_has_an_empty_plan(policy, sync):
    step = {"topology": Topology(4), "max_tokens": 100, "cost": COST}
    plan = plan_step([], policy=policy, sync=sync, **step)
    assert (len(plan.micro_batches), plan.num_slots, plan.time_s, plan.lower_bound_s, plan.gap) == (0,) * 5
    check_plan(plan, [], **step)
    assert [p.time_s for p in Planner(**step).ahead([[], []])] == [0.0, 0.0]


@pytest.mark.parametrize("speed", [{}, b"x", [[1.0] * 4], ["a"] * 4, [1.0, 2.0], [0.0] * 4])
def test_speeds_that_are_none_get_a_sentence(speed):
    with pytest.raises(ValueError, match=r"Topology.speed must hold 4 finite positive numbers"):
        Topology(4, speed=speed)


@pytest.mark.parametrize("ranks", [True, 0, -1, 1.5, float("nan"), "3", None, [4]])
def test_a_number_of_ranks_that_is_none_gets_a_sentence(ranks):
    with pytest.raises(ValueError, match=r"Topology.ranks must be a whole number of at least 1, got "):
        Topology(ranks)


def test_a_cost_that_is_not_a_time_gets_a_sentence():
    class Wrong:
        def nanoseconds(self, lengths, cp_degree=1):
            return np.asarray(lengths) * 0 - 5

        def fixed_nanoseconds(self, cp_degree=1):
            return 0

    with pytest.raises(ValueError, match="costs must be at least 0"):
        plan_step([10], topology=Topology(1), max_tokens=100, cost=Wrong())
    with pytest.raises(ValueError, match="ranks"):
        Topology(0)


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ({"order": lambda x: np.zeros_like(x)}, "every sample stands in exactly one"),
        ({"order": lambda x: x + 1}, "every sample stands in exactly one"),
        ({"tokens": lambda x: x + 1}, "tokens counts"),
        ({"slot": lambda x: x * 0}, "one micro-batch in a slot"),
        ({"slot": lambda x: x + 99}, "slots are 0"),
        ({"first_rank": lambda x: x + 3}, "groups"),
        ({"cp_degree": lambda x: x * 3}, "groups|degrees"),
        ({"cost_s": lambda x: x * 2}, "cost_s follows"),
        ({"offsets": lambda x: x * 0}, "offsets bound"),
    ],
)
def test_check_plan_names_the_law_that_is_broken(change, law):
    lengths = lengths_of(1, 50, 900)
    plan = plan_step(lengths, topology=Topology(4), max_tokens=1000, cost=COST, cp_degrees=(1, 2))
    check_plan(plan, lengths, max_tokens=1000, cost=COST, cp_degrees=(1, 2))
    columns = {name: edit(getattr(plan.micro_batches, name)) for name, edit in change.items()}
    broken = dataclasses.replace(plan, micro_batches=dataclasses.replace(plan.micro_batches, **columns))
    with pytest.raises(ValueError, match=law):
        check_plan(broken, lengths, max_tokens=1000, cost=COST, cp_degrees=(1, 2))
    with pytest.raises(ValueError, match="no micro-batch exceeds its cap"):
        check_plan(plan, lengths, max_tokens=500)


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
@pytest.mark.parametrize("fixed", [0.0, 0.1])
@pytest.mark.parametrize("ranks", [2, 40])
def test_long_samples_run_where_the_memory_is(sync, fixed, ranks):
    caps = np.full(ranks, 10)
    caps[-1] = 100
    lengths = np.array([100, 60, 11, 11] + [10] * 3 * ranks)
    plan = plan_step(
        lengths,
        topology=Topology(ranks),
        max_tokens=caps,
        cost=CostModel(linear=1e-3, fixed=fixed),
        sync=sync,
    )
    check_plan(plan, lengths, max_tokens=caps)
    batches = plan.micro_batches
    homes = [batches.first_rank[m] for m in range(len(batches)) if lengths[batches.samples(m)].max() > 10]
    assert set(homes) == {ranks - 1}


def test_a_group_holds_what_its_smallest_member_does():
    step = {"topology": Topology(4), "max_tokens": [10, 1, 10, 1], "cp_degrees": (1, 2)}
    assert admission([12], **step).rows.tolist() == [0]
    with pytest.raises(ValueError, match="1 of 2 samples fit no allowed degree"):
        plan_step([12, 10], cost=CostModel(linear=1.0), **step)
    assert plan_step([10, 10], cost=CostModel(linear=1.0), **step).micro_batches.first_rank.tolist() == [0, 2]


def test_counts_may_be_numpy_numbers():
    plain = plan_step(lengths_of(3), topology=Topology(8, 4), max_tokens=4000, cost=COST, seed=2)
    topology = Topology(np.int64(8), np.float64(4.0), pipeline_stages=np.int32(1))
    other = plan_step(
        lengths_of(3), topology=topology, max_tokens=np.int32(4000), cost=COST, seed=np.int64(2)
    )
    assert other.digest() == plain.digest()
    assert Topology(2.0).ranks == 2


@pytest.mark.parametrize("bad", ["2", 1.5, None, float("nan")])
def test_counts_that_are_not_whole_get_a_sentence(bad):
    with pytest.raises(ValueError, match=r"Topology.ranks must be a whole number"):
        Topology(bad)
    with pytest.raises(ValueError, match=r"seed must be a whole number"):
        plan_step([1], topology=Topology(1), max_tokens=4, cost=COST, seed=bad)


@pytest.mark.parametrize("speed", [[1.0, 1e-9], [989.0, 2000.0]])
def test_speeds_far_from_nominal_are_refused(speed):
    with pytest.raises(ValueError, match=r"relative to the nominal 1.0"):
        Topology(2, speed=speed)


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
def test_long_times_on_slow_ranks_stay_within_64_bits(sync):
    # 1,000 s at a thousandth of the speed, in 2**-16 nanoseconds, is 6.5e19.
    topology = Topology(2, speed=[0.001, 0.001])
    plan = plan_step([1000] * 50, topology=topology, max_tokens=1000, cost=CostModel(linear=1.0), sync=sync)
    assert plan.time_s == pytest.approx(25 * 1000 * 1000)
    assert plan.gap == pytest.approx(0, abs=1e-6)
