import json

import numpy as np
import pytest

from balancer import plan_step
from balancer.cost import Communication, CostModel, OnlineCorrection
from balancer.costs.correction import rank_parts
from balancer.topology import Topology

BASE = CostModel(2e-4, 1e-8, 0.05)
RANKS = 8


def step_lengths(rng):
    return np.minimum(rng.lognormal(8, 1, 96).astype(int) + 1, 16_000)


def run(correction, true, speed, *, steps=60, noise=0.02, seed=0):
    """Feeds simulated steps of a cluster that obeys ``true``; the number of changes."""
    rng = np.random.default_rng(seed)
    changes = 0
    for _ in range(steps):
        lengths = step_lengths(rng)
        plan = plan_step(lengths, topology=Topology(ranks=RANKS), max_tokens=16_384, cost=correction.cost)
        measured = rank_parts(true, plan, lengths).sum(axis=1) / speed
        measured = measured * (1 + noise * rng.standard_normal(RANKS))
        changes += correction.update(plan, lengths, measured)
    return changes


def test_a_true_model_stays_untouched():
    correction = OnlineCorrection(BASE, RANKS)
    assert run(correction, BASE, np.ones(RANKS)) == 0
    assert correction.cost is BASE
    assert np.all(correction.speed == 1.0)


def test_coefficients_follow_what_is_measured():
    true = CostModel(3e-4, 2e-8, 0.05)
    correction = OnlineCorrection(BASE, RANKS)
    run(correction, true, np.ones(RANKS), steps=100)
    lengths = np.array([1000, 4000, 16_000])
    np.testing.assert_allclose(correction.cost(lengths), true(lengths), rtol=0.12)
    assert "corrected" in correction.cost.source


def test_a_slow_rank_is_found_and_the_others_stay_nominal():
    speed = np.ones(RANKS)
    speed[3] = 0.7
    correction = OnlineCorrection(BASE, RANKS)
    run(correction, BASE, speed, steps=80)
    assert correction.speed[3] == pytest.approx(0.7, rel=0.1)
    assert np.all(np.delete(correction.speed, 3) == 1.0)
    assert correction.topology(Topology(ranks=RANKS)).speed[3] == correction.speed[3]


def test_a_rank_that_recovers_is_nominal_again():
    slow = np.ones(RANKS)
    slow[3] = 0.7
    correction = OnlineCorrection(BASE, RANKS)
    run(correction, BASE, slow)
    run(correction, BASE, np.ones(RANKS), steps=80)
    assert np.all(correction.speed == 1.0)


def test_plans_change_rarely_under_noise():
    speed = np.ones(RANKS)
    speed[0] = 0.85
    assert (
        run(OnlineCorrection(BASE, RANKS), CostModel(2.6e-4, 1e-8, 0.05), speed, steps=200, noise=0.05) <= 6
    )


def test_equal_times_give_equal_bits_also_after_a_restart():
    true, speed = CostModel(3e-4, 2e-8, 0.05), np.linspace(0.7, 1.1, RANKS)
    whole, first, second = (OnlineCorrection(BASE, RANKS) for _ in range(3))
    run(whole, true, speed, steps=20, noise=0.0)
    run(first, true, speed, steps=20, noise=0.0)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for correction in (whole, second):
        run(correction, true, speed, steps=20, noise=0.0, seed=1)
    assert whole.state_dict() == second.state_dict()
    assert whole.cost == second.cost


def test_another_number_of_ranks_keeps_the_coefficients():
    correction = OnlineCorrection(BASE, RANKS)
    run(correction, CostModel(4e-4, 2e-8, 0.1), np.ones(RANKS))
    resized = OnlineCorrection(BASE, 2 * RANKS)
    resized.load_state_dict(correction.state_dict())
    assert resized.cost == correction.cost
    assert resized.speed.shape == (2 * RANKS,)


def test_unknown_times_are_left_out():
    correction = OnlineCorrection(BASE, 2, warmup=0)
    plan = plan_step([100, 200], topology=Topology(ranks=2), max_tokens=1000, cost=BASE)
    assert correction.update(plan, [100, 200], [np.nan, np.nan]) is False
    assert correction.update(plan, [100, 200], [0.1, np.nan]) is False


@pytest.mark.parametrize("measured", [[0.1], [0.1, -1.0], [0.1, np.inf]])
def test_bad_times_are_named(measured):
    plan = plan_step([100, 200], topology=Topology(ranks=2), max_tokens=1000, cost=BASE)
    with pytest.raises(ValueError, match="measured_s must hold 2 times"):
        OnlineCorrection(BASE, 2).update(plan, [100, 200], measured)


@pytest.mark.parametrize("change", [{"ranks": 0}, {"threshold": 0.0}, {"patience": 0}, {"smoothing": 2.0}])
def test_bad_settings_are_named(change):
    with pytest.raises(ValueError, match="OnlineCorrection needs"):
        OnlineCorrection(BASE, **{"ranks": 2, **change})


def test_rank_parts_add_up_to_the_plans_times():
    link = Communication(bytes_per_token=1e5, intra_node=1e11, inter_node=1e10, latency_s=1e-5, overlap=0.5)
    cost = CostModel(2e-4, 1e-8, 0.05, communication=link)
    lengths = step_lengths(np.random.default_rng(0))
    plan = plan_step(lengths, topology=Topology(ranks=RANKS), max_tokens=16_384, cost=cost)
    np.testing.assert_allclose(rank_parts(cost, plan, lengths).sum(axis=1), plan.rank_time_s, rtol=1e-6)
