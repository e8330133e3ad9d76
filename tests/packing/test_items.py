"""Samples that do not fit, empty ones, and bad input."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packing import pack
from tests.packing.cases import NAMES, packed


def test_an_over_long_sample_is_an_error_that_names_the_row_its_length_and_the_way_out():
    with pytest.raises(ValueError, match=r"1 of 4 samples.*at most 4 tokens, row 0 has 5.*oversize="):
        pack([5, 2, 3, 1], 4)


@pytest.mark.parametrize(
    ("oversize", "tokens", "lost", "changed"),
    [("drop", 6, 5, "dropped"), ("truncate", 10, 1, "truncated"), ("truncate_left", 10, 1, "truncated")],
)
def test_cut_and_dropped_tokens_are_counted(oversize, tokens, lost, changed):
    packs = pack([5, 2, 3, 1], 4, oversize=oversize)
    assert packs.total_tokens == packs.num_tokens.sum() == tokens
    assert packs.lost_tokens == lost
    assert packs.counts[changed] == 1


def test_splitting_keeps_every_token():
    packs = pack([5, 2, 3, 1], 4, oversize="split")
    assert len(packs) == 3
    assert packs.total_tokens == 11
    assert packs.counts == {"kept": 4, "dropped": 0, "truncated": 0, "split": 1, "empty": 0}
    long = pack([121], 60, oversize="split")
    assert sorted(zip(long.starts.tolist(), long.lengths.tolist(), strict=True)) == [
        (0, 60),
        (60, 60),
        (120, 1),
    ]


@pytest.mark.parametrize("name", [n for n in NAMES if n != "balanced"])
@given(
    lengths=st.lists(st.integers(0, 100), max_size=40),
    cap=st.integers(1, 40),
    align=st.integers(1, 4),
    oversize=st.sampled_from(["drop", "truncate", "truncate_left", "split"]),
)
def test_kept_and_lost_tokens_and_samples_add_up(name, lengths, cap, align, oversize):
    cap = max(cap, align)
    packs = packed(name, lengths, cap, align=align, oversize=oversize)
    counts = packs.counts
    assert packs.total_tokens + packs.lost_tokens == sum(lengths)
    assert counts["kept"] + counts["dropped"] + counts["empty"] == len(lengths)
    assert counts["empty"] == lengths.count(0)
    assert set(packs.order.tolist()) == set(np.flatnonzero(packs.assignment() >= 0).tolist())
    assert len(set(packs.order.tolist())) == counts["kept"]
    assert all(packs.padded_tokens <= cap)
    seen = {s: np.zeros(lengths[s], int) for s in packs.order.tolist()}
    for sample, start, length in zip(packs.order, packs.starts, packs.lengths, strict=True):
        seen[sample][start : start + length] += 1
    longest = cap // align * align
    for sample, times in seen.items():
        if oversize == "truncate":
            assert times.tolist() == [1] * min(lengths[sample], longest) + [0] * max(
                0, lengths[sample] - longest
            )
        elif oversize == "truncate_left":
            assert times[-longest:].all()
        else:
            assert (times == 1).all()


@pytest.mark.parametrize(
    ("lengths", "match"),
    [
        ([3, -1], r"1 of 2 lengths are negative.*row 1 has -1"),
        ([1.5], "must be integers"),
        ([[1, 2]], "one axis"),
        (np.array([2**63], np.uint64), "64 bits"),
    ],
)
def test_bad_lengths_get_a_sentence(lengths, match):
    with pytest.raises(ValueError, match=match):
        pack(lengths, 8)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"strategy": "bst_fit"}, "no strategy 'bst_fit'; there are best_fit"),
        ({"oversize": "cut"}, "oversize must be one of error"),
        ({"max_samples": 0}, "max_samples must be at least 1"),
        ({"align": 0}, "align must be at least 1"),
        ({"align": 16}, "max_tokens must be at least align"),
        ({"max_tokens": 2**31}, "32-bit"),
        ({"cost": [1.0, 2.0]}, "does not look at cost"),
    ],
)
def test_bad_options_get_a_sentence(options, match):
    with pytest.raises(ValueError, match=match):
        pack([1, 2], **({"max_tokens": 8} | options))


def test_totals_are_64_bit():
    lengths = np.full(3_000, 1_500_000, np.int32)
    packs = pack(lengths, 1_500_000)
    assert packs.total_tokens == packs.num_tokens.sum() == 4_500_000_000


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("oversize", ["drop", "truncate"])
@pytest.mark.parametrize("travel", [copy.deepcopy, lambda packs: pickle.loads(pickle.dumps(packs))])
def test_packs_can_be_pickled_and_copied(name, oversize, travel):
    lengths = np.random.default_rng(0).integers(0, 30, 60)
    packs = packed(name, lengths, 24, oversize=oversize, sources=lengths % 3)
    other = travel(packs)
    for mine, theirs in ((packs, other), (packs.reshuffled(5), other.reshuffled(5))):
        np.testing.assert_array_equal(mine.order, theirs.order)
        np.testing.assert_array_equal(mine.offsets, theirs.offsets)
        np.testing.assert_array_equal(mine.assignment(), theirs.assignment())
        assert mine.counts == theirs.counts
        assert mine.lower_bound == theirs.lower_bound
