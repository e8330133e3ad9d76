"""Laws of every strategy, and the fast ones against their slow twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packing import pack
from packing.reference import REFERENCE
from tests.packing.cases import NAMES, lengths_and_cap, packed

limits = st.one_of(st.none(), st.integers(1, 8))


@pytest.mark.parametrize("name", NAMES)
@given(case=lengths_and_cap(), max_samples=limits, align=st.integers(1, 8))
def test_every_sample_stands_in_exactly_one_pack_and_no_pack_is_over_its_limits(
    name, case, max_samples, align
):
    lengths, cap = case
    cap += align
    lengths = [min(length, cap // align * align) for length in lengths]
    packs = packed(name, lengths, cap, max_samples=max_samples, align=align)
    kept = [s for s, length in enumerate(lengths) if length > 0]
    assert sorted(packs.order.tolist()) == kept
    ids = packs.assignment()
    assert ids.shape == (len(lengths),)
    assert (ids[[s for s, length in enumerate(lengths) if length == 0]] == -1).all()
    for p in range(len(packs)):
        members = packs[p].tolist()
        assert members
        assert (ids[members] == p).all()
        assert packs.num_tokens[p] == sum(lengths[s] for s in members)
        padded = sum(-(-lengths[s] // align) * align for s in members)
        assert packs.padded_tokens[p] == padded <= cap
        assert len(members) <= (max_samples or len(members))
    assert packs.lower_bound <= len(packs)
    assert packs.lengths.tolist() == [lengths[s] for s in packs.order.tolist()]
    if len(packs):
        assert packs.fill == pytest.approx(sum(lengths) / (len(packs) * cap))


@pytest.mark.parametrize("name", sorted(set(NAMES) & set(REFERENCE)))
@given(case=lengths_and_cap(), max_samples=limits)
def test_packs_equal_those_of_the_slow_twin(name, case, max_samples):
    lengths, cap = case
    packs = packed(name, lengths, cap, max_samples=max_samples)
    twin = REFERENCE[name](lengths, cap, max_samples)

    def contents(groups):
        return sorted(sorted(lengths[s] for s in group) for group in groups)

    assert contents(packs[p].tolist() for p in range(len(packs))) == contents(twin)


@pytest.mark.parametrize("name", NAMES)
def test_packs_equal_those_of_the_slow_twin_on_a_thousand_skewed_lengths(name):
    lengths = np.clip(np.random.default_rng(5).lognormal(3, 1.2, 1000).astype(int), 1, 300).tolist()
    if name in REFERENCE:
        assert len(packed(name, lengths, 300)) == len(REFERENCE[name](lengths, 300))


@pytest.mark.parametrize("name", NAMES)
@given(case=lengths_and_cap())
def test_equal_inputs_give_equal_packs_for_every_integer_type_and_read_only_arrays(name, case):
    lengths, cap = case
    first = packed(name, lengths, cap)
    for dtype in (np.int32, np.int64, np.int16, np.uint32):
        array = np.asarray(lengths, dtype)
        array.flags.writeable = False
        again = packed(name, array, cap)
        assert again.order.tolist() == first.order.tolist()
        assert again.offsets.tolist() == first.offsets.tolist()
    strided = np.repeat(np.asarray(lengths, np.int64), 2)[::2]
    assert packed(name, strided, cap).order.tolist() == first.order.tolist()


@given(case=lengths_and_cap())
def test_next_fit_keeps_the_order(case):
    lengths, cap = case
    packs = pack(lengths, cap, strategy="next_fit")
    assert packs.order.tolist() == [s for s, length in enumerate(lengths) if length > 0]


@pytest.mark.parametrize("name", NAMES)
def test_eight_samples_of_seven_tokens_need_eight_packs_of_eight(name):
    assert len(packed(name, [7] * 8, 8)) == 8


@pytest.mark.parametrize("name", NAMES)
def test_no_pack_has_more_samples_than_allowed_however_short_they_are(name):
    packs = packed(name, np.ones(10_000, np.int64), 8192, max_samples=256)
    assert len(packs) == 40
    assert np.diff(packs.offsets).max() <= 256


@pytest.mark.parametrize("name", NAMES)
def test_a_pack_may_hold_a_million_samples(name):
    packs = packed(name, np.ones(1_000_001, np.int32), 1_000_000)
    assert sorted(packs.num_tokens.tolist()) in ([1, 1_000_000], [500_000, 500_001])
    assert (np.bincount(packs.assignment()) == packs.num_tokens).all()
    assert (np.sort(packs.order) == np.arange(1_000_001)).all()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_pack_is_no_pack(name):
    for lengths in ([], [0, 0]):
        packs = packed(name, lengths, 8)
        assert len(packs) == packs.lower_bound == 0
        assert packs.order.size == 0
        assert packs.offsets.tolist() == [0]
        assert packs.fill == 1.0
        assert packs.counts["empty"] == len(lengths)


@given(case=lengths_and_cap())
def test_indexing_and_iterating_work_as_for_a_list(case):
    lengths, cap = case
    packs = pack(lengths, cap)
    assert [p.tolist() for p in packs] == [packs[i].tolist() for i in range(len(packs))]
    if len(packs):
        assert packs[-1].tolist() == packs[len(packs) - 1].tolist()
    with pytest.raises(IndexError):
        packs[len(packs)]
