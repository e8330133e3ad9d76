"""Other partners every epoch with the same pack sizes, and passes cut into chunks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from packing import pack
from packing.shuffling import renumbering
from tests.packing.cases import NAMES, lengths_and_cap, packed


@pytest.mark.parametrize("name", NAMES)
@given(case=lengths_and_cap(), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_reshuffling_changes_no_packs_lengths_and_loses_no_sample(name, case, seed, epoch):
    lengths, cap = case
    packs = packed(name, lengths, cap)
    other = packs.reshuffled(seed, epoch)

    def contents(result):
        return sorted(sorted(lengths[s] for s in group.tolist()) for group in result)

    assert contents(other) == contents(packs)
    assert sorted(other.order.tolist()) == sorted(packs.order.tolist())
    assert sorted(other.num_tokens.tolist()) == sorted(packs.num_tokens.tolist())
    ids = other.assignment()
    for p, group in enumerate(other):
        assert (ids[group] == p).all()
        assert other.num_tokens[p] == sum(lengths[s] for s in group.tolist())
    again = other.reshuffled(seed, epoch)
    assert again.order.tolist() == other.order.tolist()
    if seed == 0 and epoch == 0:
        assert packed(name, lengths, cap, seed=0).order.tolist() == other.order.tolist()


def test_a_seed_is_no_length_curriculum_and_epochs_group_samples_differently():
    lengths = np.linspace(1, 2000, 10_000).astype(np.int32) // 8 * 8 + 1
    packs = pack(lengths, 8000, seed=1)
    mean_length = packs.num_tokens / np.diff(packs.offsets)
    assert abs(spearmanr(np.arange(len(packs)), mean_length).statistic) < 0.1
    partners = [{tuple(sorted(group.tolist())) for group in packs.reshuffled(1, epoch)} for epoch in range(3)]
    assert len(partners[0] & partners[1]) < 0.2 * len(packs)
    assert len(partners[1] & partners[2]) < 0.2 * len(packs)
    in_order = pack(lengths, 8000, strategy="next_fit", seed=1)
    assert in_order.order.tolist() == list(range(10_000))


@given(num_packs=st.integers(2, 3000), key=st.integers(0, 100))
def test_pack_numbers_go_through_a_bijection_that_mixes_every_window(num_packs, key):
    factor, _, shift, modulus = (int(word) for word in renumbering(num_packs, key))
    renumbered = (np.arange(num_packs) * factor + shift) % modulus
    assert sorted(renumbered.tolist()) == list(range(num_packs))
    if num_packs > 500:
        canonical = np.argsort(renumbered)
        for window in np.array_split(canonical, 8):
            assert abs(window.mean() / num_packs - 0.5) < 0.12


@pytest.mark.parametrize("name", NAMES)
@given(
    case=lengths_and_cap(), cuts=st.tuples(st.integers(0, 60), st.integers(0, 60)), threads=st.integers(1, 3)
)
def test_a_pass_in_chunks_or_on_threads_gives_the_same_pack_ids(name, case, cuts, threads):
    lengths, cap = case
    for packs in (packed(name, lengths, cap), packed(name, lengths, cap, seed=3)):
        whole = packs.assignment()
        first, second = sorted(min(cut, len(lengths)) for cut in cuts)
        parts = [
            packs.assignment(0, first),
            packs.assignment(first, second, threads=threads),
            packs.assignment(second),
        ]
        assert np.concatenate(parts).tolist() == whole.tolist()
        assert packs.assignment(threads=threads).tolist() == whole.tolist()


def test_chunks_outside_the_samples_are_refused():
    with pytest.raises(ValueError, match=r"within 0\.\.3"):
        pack([1, 2, 3], 8).assignment(2, 4)


@pytest.mark.parametrize("cap", [150, 4_000, 300_000, 3_000_000])
@pytest.mark.parametrize("num_samples", [300, 20_000])
def test_few_samples_and_large_capacities_take_other_tables_and_give_valid_exact_packs(cap, num_samples):
    lengths = np.clip(np.random.default_rng(cap).lognormal(4, 3, num_samples).astype(np.int64), 0, cap)
    packs = pack(lengths, cap)
    ids = packs.assignment()
    assert ((ids < 0) == (lengths == 0)).all()
    totals = np.bincount(ids[ids >= 0], weights=lengths[ids >= 0])
    assert (totals == packs.num_tokens).all()
    assert totals.max() <= cap
    assert (np.sort(packs.order) == np.flatnonzero(lengths)).all()
    if num_samples == 300:
        from packing.reference import best_fit

        twin = best_fit(lengths.tolist(), cap)
        assert sorted(totals.tolist()) == sorted(sum(int(lengths[s]) for s in group) for group in twin)
