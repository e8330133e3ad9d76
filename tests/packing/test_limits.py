"""A second budget, groups that stay together, sources kept apart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packing import pack
from tests.packing.cases import NAMES, lengths_and_cap, packed


@st.composite
def limited(draw):
    """Lengths and cap, needs and limit of a second budget, groups, sources that groups do not cross."""
    lengths, cap = draw(lengths_and_cap(most_samples=40))
    size = len(lengths)
    limit = draw(st.integers(0, 6))
    needs = draw(st.lists(st.integers(0, limit), min_size=size, max_size=size))
    groups = draw(st.lists(st.integers(0, 20), min_size=size, max_size=size))
    return lengths, cap, needs, limit, groups, [group % 3 for group in groups]


@pytest.mark.parametrize("name", ["best_fit", "next_fit"])
@given(
    case=limited(), max_samples=st.one_of(st.none(), st.integers(1, 5)), seed=st.one_of(st.none(), st.just(4))
)
def test_no_pack_goes_over_its_second_budget(name, case, max_samples, seed):
    lengths, cap, needs, limit, _, _ = case
    packs = pack(
        lengths, cap, strategy=name, second=needs, max_second=limit, max_samples=max_samples, seed=seed
    )
    assert sorted(packs.order.tolist()) == [s for s, length in enumerate(lengths) if length]
    for group in packs:
        assert sum(lengths[s] for s in group) <= cap
        assert sum(needs[s] for s in group) <= limit
        assert len(group) <= (max_samples or len(group))
    assert packs.lower_bound <= len(packs)


@given(case=limited())
def test_a_second_budget_that_never_binds_changes_no_number_of_packs(case):
    lengths, cap, needs, _, _, _ = case
    with_budget = pack(lengths, cap, second=needs, max_second=10_000)
    assert sorted(with_budget.num_tokens.tolist()) == sorted(pack(lengths, cap).num_tokens.tolist())


def test_ten_images_that_no_pack_can_hold_follow_the_rule_for_oversize():
    patches = np.array([0, 1, 10, 1, 2]) * 2088
    lengths = np.full(5, 100)
    with pytest.raises(ValueError, match=r"max_second = 5000, row 2 needs 20880.*oversize='drop'"):
        pack(lengths, 8192, second=patches, max_second=5000)
    packs = pack(lengths, 8192, second=patches, max_second=5000, oversize="drop")
    assert packs.counts["dropped"] == 1
    assert packs.lost_tokens == 100
    assert all(patches[group].sum() <= 5000 for group in packs)
    assert len(packs) == 2


@pytest.mark.parametrize("name", NAMES)
@given(
    case=limited(), seed=st.one_of(st.none(), st.just(4)), with_sources=st.booleans(), align=st.integers(1, 3)
)
def test_groups_share_a_pack_and_sources_do_not(name, case, seed, with_sources, align):
    lengths, cap, _, _, groups, sources = case
    cap += align
    packs = packed(
        name,
        lengths,
        cap,
        groups=groups,
        sources=sources if with_sources else None,
        oversize="drop",
        seed=seed,
        align=align,
    )
    ids = packs.assignment()
    for number in set(groups):
        members = [s for s in range(len(lengths)) if groups[s] == number and lengths[s]]
        assert len({int(ids[s]) for s in members}) <= 1
        needed = sum(-(-lengths[s] // align) for s in members)
        assert all((ids[s] >= 0) == (needed <= cap // align) for s in members)
    for group in packs:
        assert sum(-(-lengths[s] // align) * align for s in group) <= cap
        assert not with_sources or len({sources[s] for s in group}) == 1
    assert packs.total_tokens + packs.lost_tokens == sum(lengths)
    assert packs.counts["kept"] == packs.order.size
    assert packs.lower_bound <= len(packs)


@pytest.mark.parametrize("name", NAMES)
@given(case=limited())
def test_sources_kept_apart_are_packed_as_if_alone(name, case):
    lengths, cap, _, _, _, sources = case
    packs = packed(name, lengths, cap, sources=sources)
    ids = packs.assignment()
    columns = np.array(lengths, int), np.array(sources, int)
    for source in set(sources):
        own = (columns[1] == source) & (columns[0] > 0)
        assert len(set(ids[own].tolist())) == len(packed(name, columns[0][own], cap))


@given(case=limited(), most=st.integers(1, 6))
def test_a_limit_on_samples_counts_the_members_of_groups(case, most):
    lengths, cap, needs, limit, groups, _ = case
    packs = pack(
        lengths, cap, groups=groups, max_samples=most, second=needs, max_second=limit, oversize="drop"
    )
    for group in packs:
        assert len(group) <= most
        assert sum(needs[s] for s in group) <= limit


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"groups": [0, 0, 0]}, r"groups must stay within max_tokens = 8, row 0 needs 9"),
        ({"groups": [0, 0, 1], "sources": [0, 1, 1]}, "one group must have one source; row 1"),
        ({"groups": [0, 1]}, r"shape \(3,\)"),
        ({"second": [1, 1, 1]}, "belong together"),
        ({"second": [1, -1, 1], "max_second": 2}, "row 1 has -1"),
        ({"second": [1, 1, 1], "max_second": 2, "strategy": "optimal"}, "needs one of best_fit, next_fit"),
        ({"groups": [0, 1, 2], "max_samples": 2, "strategy": "first_fit"}, "need one of best_fit, next_fit"),
        ({"groups": [0, 1, 2], "oversize": "split"}, "cuts plain samples"),
    ],
)
def test_limits_that_cannot_be_met_get_a_sentence(options, match):
    with pytest.raises(ValueError, match=match):
        pack([3, 3, 3], 8, **options)
