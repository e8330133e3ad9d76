"""Counts of each source follow their targets within one sample, at any position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.order._kernels import fill_block, fill_even_block
from loaders.order.quota import Quota, largest_remainders, until_all_given


def deviation(quota, start, size):
    source, ordinal = quota.locate(np.arange(start, start + size))
    counts = quota.counts(start) + np.cumsum(np.eye(quota.num_sources, dtype=np.int64)[source], axis=0)
    targets = np.array([quota.targets(position) for position in range(start + 1, start + size + 1)])
    np.testing.assert_array_equal(ordinal, counts[np.arange(size), source] - 1)
    np.testing.assert_array_equal(counts[-1], quota.counts(start + size))
    return np.abs(counts - targets).max()


weights = st.lists(st.floats(0.002, 1), min_size=1, max_size=12).map(lambda w: np.array(w) / sum(w))


@settings(max_examples=60)
@given(weights=weights, start=st.sampled_from([0, 1, 12_345, 10**9 - 100]))
def test_every_source_is_within_one_sample_of_its_share_at_any_position(weights, start):
    assert deviation(Quota(np.zeros(1), weights[None]), start, 700) < 1


@pytest.mark.parametrize("weights", [[0.7, 0.3], [0.5, 0.3, 0.2], [0.9] + [0.001] * 100, [0.01] * 100])
def test_uneven_and_many_sources_stay_within_one_sample(weights):
    quota = Quota(np.zeros(1), np.array(weights)[None] / sum(weights))
    assert deviation(quota, 0, 3000) < 1
    assert deviation(quota, 10**9, 3000) < 1


def test_the_largest_error_is_far_below_that_of_independent_draws():
    weights = np.array([0.4, 0.3, 0.2, 0.1])
    source, _ = Quota(np.zeros(1), weights[None]).locate(np.arange(100_000))
    ours = np.abs(np.bincount(source) - weights * 100_000).max()
    drawn = np.random.default_rng(0).choice(4, 100_000, p=weights)
    assert ours < 1 < np.abs(np.bincount(drawn) - weights * 100_000).max()


def test_positions_in_any_order_and_repeated_are_found_as_one_by_one():
    quota = until_all_given(np.array([0.5, 0.3, 0.2]), np.array([900, 100, 2_000]))
    positions = np.random.default_rng(0).integers(0, 3_000, 4_000)
    source, ordinal = quota.locate(positions)
    alone = until_all_given(np.array([0.5, 0.3, 0.2]), np.array([900, 100, 2_000]))
    found = [alone.locate(np.array([position])) for position in positions.tolist()]
    assert source.tolist() == [int(one[0][0]) for one in found]
    assert ordinal.tolist() == [int(one[1][0]) for one in found]
    assert quota.locate(np.zeros(0, np.int64))[0].size == 0


def test_a_whole_epoch_costs_each_block_once(monkeypatch):
    filled, fill = [], Quota._filled
    monkeypatch.setattr(Quota, "_filled", lambda self, number: filled.append(number) or fill(self, number))
    quota = until_all_given(np.array([0.5, 0.3, 0.2]), np.array([20_000] * 3))
    quota.locate(np.random.default_rng(0).permutation(60_000))
    assert len(filled) == len(set(filled)) == -(-60_000 // quota.block)


def test_any_position_costs_one_block(monkeypatch):
    filled, fill = [], Quota._filled
    monkeypatch.setattr(Quota, "_filled", lambda self, number: filled.append(number) or fill(self, number))
    weights = np.random.default_rng(0).dirichlet(np.ones(100))
    Quota(np.zeros(1), weights[None]).locate(np.arange(10**9, 10**9 + 512))
    assert len(filled) <= 2


@pytest.mark.parametrize("seed", range(40))
def test_blocks_of_one_rate_are_laid_out_as_blocks_of_any(seed):
    rng = np.random.default_rng(seed)
    num_sources, size = int(rng.integers(1, 40)), 4096
    shares = rng.multinomial(1024, rng.dirichlet(np.ones(num_sources) * rng.choice([0.1, 1.0])))
    rates = shares / 1024  # dyadic, so that both ways to write a deadline are exact and ties are the same
    first = int(rng.integers(0, 10**6))
    quota = Quota(np.zeros(1), rates[None])
    before, after = (largest_remainders(quota.targets(at), at) for at in (first, first + size))
    even, plain = ((np.zeros(size, np.int32), np.zeros(size, np.int64)) for _ in range(2))
    fill_even_block(first * rates, rates, before.copy(), after, *even)
    fill_block(first, np.zeros(1), np.zeros((1, num_sources)), rates[None], before.copy(), after, *plain)
    np.testing.assert_array_equal(even[0], plain[0])
    np.testing.assert_array_equal(even[1], plain[1])


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any),
    seed=st.integers(0, 99),
)
def test_all_once_gives_every_sample_once_and_then_ends(sizes, seed):
    rates = np.random.default_rng(seed).dirichlet(np.ones(len(sizes)))
    quota = until_all_given(rates, np.array(sizes))
    assert quota.total == sum(sizes)
    source, ordinal = quota.locate(np.arange(sum(sizes)))
    assert np.bincount(source, minlength=len(sizes)).tolist() == sizes
    for number, size in enumerate(sizes):
        assert ordinal[source == number].tolist() == list(range(size))
    assert quota.counts(sum(sizes)).tolist() == sizes


def test_a_source_that_runs_out_leaves_the_others_their_proportions():
    quota = until_all_given(np.array([0.5, 0.3, 0.2]), np.array([100, 10_000, 10_000]))
    counts = quota.counts(200 + 5000)
    np.testing.assert_allclose(counts, [100, 60 + 3000, 40 + 2000], atol=1)


@given(seed=st.integers(0, 200))
def test_counts_never_fall_when_rates_change_and_stand_still(seed):
    rng = np.random.default_rng(seed)
    sources = int(rng.integers(2, 6))
    rates = rng.dirichlet(np.ones(sources), size=8)
    rates[rng.random((8, sources)) < 0.4] = 0
    rates[rates.sum(axis=1) == 0] = 1 / sources
    rates /= rates.sum(axis=1, keepdims=True)
    quota = Quota(np.cumsum(np.r_[0, rng.integers(1, 300, 7)]), rates)
    assert deviation(quota, 0, 1600) < 2
    borders = np.array([quota.counts(position) for position in range(0, 2500, 7)])
    assert (np.diff(borders, axis=0) >= 0).all()
    assert (borders.sum(axis=1) == np.arange(0, 2500, 7)).all()


@given(targets=st.lists(st.floats(0, 50), min_size=1, max_size=8))
def test_largest_remainders_sum_to_the_total_and_stay_within_one(targets):
    total = round(sum(targets))
    if total - sum(int(t) for t in targets) < 0:
        return
    targets = np.array(targets) * (total / sum(targets)) if sum(targets) else np.array(targets)
    counts = largest_remainders(targets, total)
    assert counts.sum() == total
    assert np.abs(counts - targets).max() <= 1 + 1e-9
