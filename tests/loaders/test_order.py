"""The keyed permutation: a bijection for any size and key, at any position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loaders.order import reference
from loaders.order.permutation import SourceOrder, derive, permute


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_every_place_comes_exactly_once(size, key):
    assert sorted(permute(np.arange(size), size, key).tolist()) == list(range(size))


@given(size=st.integers(1, 2**40), key=st.integers(0, 2**64 - 1), part=st.floats(0, 1, exclude_max=True))
def test_kernel_equals_its_slow_twin(size, key, part):
    position = int(part * size)
    assert permute([position], size, key).tolist() == [reference.permute(position, size, key)]


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 16, 17])
def test_small_sets_are_shuffled_evenly_over_keys(size):
    """Each sample is first, and last, equally often: chi-square over 4,000 keys at 1 in 10,000."""
    orders = np.array([permute(np.arange(size), size, derive("test", key)) for key in range(4000)])
    for place in (0, size - 1):
        counts = np.bincount(orders[:, place], minlength=size)
        assert stats.chisquare(counts).pvalue > 1e-4


def test_neighbours_do_not_stay_neighbours():
    images = permute(np.arange(100_000), 100_000, 7)
    assert abs(np.corrcoef(np.arange(100_000), images)[0, 1]) < 0.02
    assert np.mean(np.abs(np.diff(images)) == 1) < 1e-3


def test_a_position_costs_the_same_wherever_it_lies():
    size = 10**12  # walking there would take hours
    images = permute(np.arange(size - 512, size), size, 3)
    assert len(set(images.tolist())) == 512
    assert size / 100 < np.ptp(images) < size


def test_positions_outside_are_refused():
    with pytest.raises(ValueError, match=r"positions must lie in 0\.\.9, got 3\.\.10"):
        permute([3, 10], 10, 0)


def test_keys_tell_parts_and_their_kinds_apart():
    keys = [derive(0, "a", 1), derive(0, "a", "1"), derive(0, "a1"), derive(0, "a", 2), derive(1, "a", 1)]
    assert len(set(keys)) == len(keys)


def test_epochs_and_seeds_give_other_orders():
    positions = np.arange(50)
    orders = [
        SourceOrder(50, shuffle=True, seed=seed).locate(epoch, positions)[1].tolist()
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len({tuple(order) for order in orders}) == 4
    assert SourceOrder(50, shuffle=False, seed=0).locate(3, positions)[1].tolist() == list(range(50))
