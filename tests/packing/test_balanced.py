"""Packs of equal cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.workloads import MIXES
from packing import pack
from packing.balanced import excess
from tests.packing.cases import lengths_and_cap, packed


def seconds(lengths):
    """A decoder whose attention costs as much as the rest at 32K tokens, the scale of the bound is free."""
    return 1e-4 * lengths * (1 + lengths / 32_768)


@given(case=lengths_and_cap(), max_samples=st.one_of(st.none(), st.integers(1, 8)))
def test_at_most_one_percent_more_packs_and_never_a_slower_slowest_pack_than_best_fit(case, max_samples):
    lengths, cap = case
    cost = seconds(np.asarray(lengths, np.float64))
    tight = pack(lengths, cap, max_samples=max_samples)
    even = pack(lengths, cap, max_samples=max_samples, strategy="balanced", cost=cost)
    assert len(even) <= 1.01 * len(tight)

    def slowest(packs):
        return max((cost[group].sum() for group in packs), default=0.0)

    assert slowest(even) <= slowest(tight) * (1 + 1e-12)


def forced_by_tokens(lengths, cost, cap, num_packs):
    """What the slowest pack costs at least: with so little room, the costliest sample cannot stay alone."""
    spare = num_packs * cap - int(lengths.sum())
    most = int(np.argmax(cost))
    company = max(0, cap - spare - int(lengths[most]))
    return max(cost.sum() / num_packs, cost[most] + company * (cost / lengths).min())


@pytest.mark.parametrize("mix", sorted(MIXES))
def test_the_excess_over_the_bound_is_a_tenth_of_best_fits(mix):
    for cap in (16_384, 131_072, 524_288):
        lengths = MIXES[mix](20_000, 7).astype(np.int64)
        lengths = lengths[lengths <= cap]
        cost = seconds(lengths)
        tight = pack(lengths, cap)
        even = pack(lengths, cap, strategy="balanced", cost=cost)
        bound = forced_by_tokens(lengths, cost, cap, len(even))
        before, after = (np.bincount(p.assignment(), weights=cost).max() / bound - 1 for p in (tight, even))
        assert after <= max(before, 0) / 10 + 1e-9, (cap, before, after)
        assert excess(cost, even.assignment(), len(even)) <= excess(cost, tight.assignment(), len(tight))


def test_cost_may_be_anything_and_zero():
    lengths = np.array([4, 4, 4, 4])
    packs = packed("balanced", lengths, 8, cost=[3.0, 1.0, 1.0, 3.0])
    assert sorted(sum([3.0, 1.0, 1.0, 3.0][s] for s in group) for group in packs) == [4.0, 4.0]
    assert len(packed("balanced", lengths, 8, cost=np.zeros(4))) == 2


def test_balanced_asks_for_costs_of_every_sample():
    with pytest.raises(ValueError, match="needs cost="):
        pack([1, 2], 8, strategy="balanced")
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        pack([1, 2], 8, strategy="balanced", cost=[1.0])
    with pytest.raises(ValueError, match="row 1 has nan"):
        pack([1, 2], 8, strategy="balanced", cost=[1.0, np.nan])
