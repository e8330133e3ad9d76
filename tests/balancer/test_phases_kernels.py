"""Kernels of the phase planner against their slow twins."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from balancer._kernels import phases as fast
from balancer.phasing import reference as slow_twin

seeds = st.integers(0, 2**32 - 1)


def instance(seed):
    """A random instance with few distinct values, so that ties are common."""
    rng = np.random.default_rng(seed)
    phases, items, bins = rng.integers(1, 4), rng.integers(1, 15), rng.integers(1, 6)
    work = rng.integers(0, 5, (phases, items)).astype(np.float64) * 1000.0
    tokens = rng.integers(1, 10, items)
    room = rng.integers(5, 40, bins)
    slow = rng.choice([1.0, 1.0, 2.0], bins)
    base = rng.integers(0, 3, (phases, bins)).astype(np.float64) * 500.0
    return rng, work, tokens, room, slow, base


@given(seeds)
def test_spreading_equals_its_twin(seed):
    rng, work, tokens, room, slow, base = instance(seed)
    order = rng.permutation(tokens.size)
    scale = work.mean(axis=1)
    arguments = (work, tokens, room, order, slow, base, scale)
    np.testing.assert_array_equal(fast.spread_vectors(*arguments), slow_twin.spread_vectors(*arguments))


@given(seeds)
def test_stacking_equals_its_twin(seed):
    rng, work, tokens, room, slow, base = instance(seed)
    order = rng.permutation(tokens.size)
    phase_of = rng.integers(0, work.shape[0], tokens.size)
    arguments = (work, tokens, room, order, phase_of, slow, base)
    np.testing.assert_array_equal(fast.stack_vectors(*arguments), slow_twin.stack_vectors(*arguments))


@given(seeds)
def test_first_fit_equals_its_twin(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 8, rng.integers(1, 6))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    tokens = rng.integers(1, 11, offsets[-1])
    arguments = (tokens, offsets, 10)
    np.testing.assert_array_equal(fast.first_fit_lists(*arguments), slow_twin.first_fit_lists(*arguments))


@given(seeds, st.integers(0, 5000))
def test_refining_never_raises_the_sum_of_maxima_and_keeps_within_room(seed, budget):
    rng, work, tokens, _, slow, base = instance(seed)
    bins = slow.size
    group = np.sort(rng.integers(0, 3, bins))
    floor = rng.integers(0, 2, (work.shape[0], 3)).astype(np.float64) * 2000.0
    bin_of = rng.integers(0, bins, tokens.size)
    used = np.bincount(bin_of, tokens, bins).astype(np.int64)
    room = used + rng.integers(0, 10, bins)
    before = slow_twin.sum_of_maxima(work, slow, base, floor, group, bin_of)
    refined = bin_of.copy()
    fast.refine_vectors(work, tokens, room, slow, base, floor, group, refined, 0.0, budget)
    after = slow_twin.sum_of_maxima(work, slow, base, floor, group, refined)
    assert after <= before + 1e-6
    assert np.all(np.bincount(refined, tokens, bins) <= room)


@given(seeds)
def test_a_refined_assignment_has_no_better_move_of_one_item_off_a_largest_bin(seed):
    rng, work, tokens, _, slow, base = instance(seed)
    bins = slow.size
    group, floor = np.zeros(bins, np.int64), np.zeros((work.shape[0], 1))
    room = np.full(bins, 10**6)
    bin_of = rng.integers(0, bins, tokens.size)
    fast.refine_vectors(work, tokens, room, slow, base, floor, group, bin_of, 0.0, 10**9)
    least = slow_twin.sum_of_maxima(work, slow, base, floor, group, bin_of)
    for i in range(tokens.size):
        for b in range(bins):
            moved = bin_of.copy()
            moved[i] = b
            assert slow_twin.sum_of_maxima(work, slow, base, floor, group, moved) >= least - 1.0


def test_refining_stops_at_its_target_and_at_its_budget():
    work = np.array([[4.0, 3.0, 2.0, 1.0]]) * 1e6
    arguments = (
        np.ones(4, np.int64),
        np.full(2, 9),
        np.ones(2),
        np.zeros((1, 2)),
        np.zeros((1, 1)),
        np.zeros(2, np.int64),
    )
    for target, budget, expected in ((1e9, 10**6, [0, 0, 0, 0]), (0.0, 0, [0, 0, 0, 0])):
        bin_of = np.zeros(4, np.int64)
        fast.refine_vectors(work, *arguments, bin_of, target, budget)
        assert bin_of.tolist() == expected
    bin_of = np.zeros(4, np.int64)
    fast.refine_vectors(work, *arguments, bin_of, 0.0, 10**6)
    assert slow_twin.sum_of_maxima(work, *arguments[2:], bin_of) == 5e6
