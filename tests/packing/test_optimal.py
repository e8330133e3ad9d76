"""Lower bounds never lie, and `optimal` reaches them."""

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import Bounds, LinearConstraint, milp

from benchmarks.workloads import mixed_instances
from packing import pack
from packing.bounds import fewest_packs, martello_toth
from tests.packing.cases import lengths_and_cap


def fewest_by_milp(lengths, cap) -> int:
    """Assignment model by HiGHS: x[s, p] sample s in pack p, y[p] pack p is used."""
    lengths = [length for length in lengths if length]
    n = len(lengths)
    if n == 0:
        return 0
    cost = np.concatenate([np.zeros(n * n), np.ones(n)])
    placed = np.zeros((n, n * n + n))
    room = np.zeros((n, n * n + n))
    for s in range(n):
        placed[s, s * n : s * n + n] = 1
        for p in range(n):
            room[p, s * n + p] = lengths[s]
    room[:, n * n :] -= cap * np.eye(n)
    ordered = np.zeros((n - 1, n * n + n))
    for p in range(n - 1):
        ordered[p, n * n + p], ordered[p, n * n + p + 1] = 1, -1
    result = milp(
        cost,
        constraints=[
            LinearConstraint(placed, 1, 1),
            LinearConstraint(room, -np.inf, 0),
            LinearConstraint(ordered, 0, np.inf),
        ],
        integrality=np.ones(cost.size),
        bounds=Bounds(0, 1),
    )
    assert result.success
    return round(result.fun)


@settings(max_examples=40)
@given(case=lengths_and_cap(most_samples=8, most_tokens=30))
def test_no_bound_is_above_the_true_optimum_and_optimal_reaches_it(case):
    lengths, cap = case
    fewest = fewest_by_milp(lengths, cap)
    packs = pack(lengths, cap, strategy="optimal")
    assert pack(lengths, cap).lower_bound <= packs.lower_bound <= fewest == len(packs)


@given(case=lengths_and_cap())
def test_optimal_never_needs_more_packs_than_best_fit(case):
    lengths, cap = case
    assert len(pack(lengths, cap, strategy="optimal")) <= len(pack(lengths, cap))


def test_the_bound_knows_what_no_two_long_samples_can_do():
    values, counts = np.array([60, 34], np.int64), np.array([10, 9], np.int64)
    assert fewest_packs(values, counts, 100, 2**31 - 1) == 10
    values, counts = np.array([51, 26, 25], np.int64), np.array([10, 10, 10], np.int64)
    assert martello_toth(values, counts, 100) == 11
    assert fewest_packs(np.array([34], np.int64), np.array([10], np.int64), 100, 2**31 - 1) == 5


def test_a_limit_on_samples_binds_the_bound_and_the_optimum():
    packs = pack([1] * 100, 100, strategy="optimal", max_samples=10)
    assert len(packs) == packs.lower_bound == 10


@pytest.mark.parametrize("num_instances", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_at_least_95_percent_of_mixed_instances_end_at_the_lower_bound(num_instances):
    reached = 0
    for _, lengths, cap in mixed_instances(num_instances, seed=3):
        packs = pack(lengths, cap, strategy="optimal")
        assert np.bincount(packs.assignment(), weights=lengths).max() <= cap
        assert len(packs) <= len(pack(lengths, cap))
        reached += len(packs) == packs.lower_bound
    assert reached >= 0.95 * num_instances


def test_triplets_end_at_a_third_of_the_samples():
    for name, lengths, cap in mixed_instances(20, seed=5):
        if name.startswith("triplets"):
            packs = pack(lengths, cap, strategy="optimal")
            assert packs.lower_bound == len(lengths) // 3
            assert len(packs) <= packs.lower_bound + (len(lengths) > 300)


def test_equal_inputs_take_equal_steps():
    _, lengths, cap = next(iter(mixed_instances(1, seed=9)))
    first, second = (pack(lengths, cap, strategy="optimal").assignment() for _ in range(2))
    assert (first == second).all()
