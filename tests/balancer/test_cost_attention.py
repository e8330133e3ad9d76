"""Attended pairs against a mask that is written out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import Topology, plan_step
from balancer.cost import CostModel, attended_pairs


def mask(n, pattern, size=0):
    """[n, n] whether query i sees key j."""
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    causal = j <= i
    return {
        "causal": causal,
        "full": np.ones((n, n), bool),
        "linear": np.zeros((n, n), bool),
        "window": causal & (i - j < size),
        "chunked": causal & (i // max(size, 1) == j // max(size, 1)),
        "prefix": causal | ((i < size) & (j < size)),
        "block": causal | (i // max(size, 1) == j // max(size, 1)),
    }[pattern]


@pytest.mark.parametrize("pattern", ["causal", "full", "linear", "window", "chunked", "prefix", "block"])
@given(n=st.integers(0, 40), size=st.integers(1, 50))
def test_pairs_equal_the_written_out_mask(pattern, n, size):
    sized = pattern in ("window", "chunked", "prefix", "block")
    name = f"{pattern}:{size}" if sized else pattern
    assert attended_pairs(np.array([n]), name)[0] == mask(n, pattern, size).sum()


@pytest.mark.parametrize(
    ("length", "attention", "pairs"),
    [
        (2048, "causal", 2_098_176),
        (2048, "window:512", 917_760),
        (1000, "window:4096", 500_500),
        (2048, "chunked:256", 263_168),
        (2048, "linear", 0),
        (2**31 - 1, "causal", (2**31 - 1) * 2**30),
        (2**31 - 1, "full", (2**31 - 1) ** 2),
    ],
)
def test_known_pairs(length, attention, pairs):
    assert attended_pairs(np.array([length]), attention).tolist() == [pairs]


def test_a_stack_sums_over_its_layers():
    lengths = np.array([10, 2048])
    expected = 2 * attended_pairs(lengths, "causal") + 3 * attended_pairs(lengths, "window:512")
    assert attended_pairs(lengths, "2*causal + 3*window:512 + 5*linear").tolist() == expected.tolist()


def test_a_stack_too_deep_for_64_bits_says_so():
    with pytest.raises(OverflowError, match="exceed 64 bits"):
        attended_pairs(np.array([2**31 - 1]), "8*causal")


@pytest.mark.parametrize(
    "attention", ["", "sparse", "window", "causal:5", "window:0", "0*causal", "causal +"]
)
def test_an_unknown_pattern_is_named(attention):
    with pytest.raises(ValueError, match="attention"):
        CostModel(1e-4, 1e-8, attention=attention)


def test_a_pack_costs_the_sum_of_its_documents_and_not_its_length():
    cost = CostModel(0.0, 1e-9)
    assert cost([512] * 4).sum() == pytest.approx(4 * 1e-9 * 512 * 513 / 2)
    assert cost([512] * 4).sum() < cost([2048]).sum() / 3


def test_another_layer_mix_changes_the_assignment():
    lengths = np.array([4096] + [512] * 16)
    beside_the_long_one = {}
    for attention in ("4*causal", "1*causal + 3*linear", "4*linear"):
        cost = CostModel(1e-6, 4e-10, attention=attention)
        plan = plan_step(lengths, topology=Topology(ranks=2), max_tokens=10**5, cost=cost)
        held = [np.concatenate([plan.micro_batches.samples(m) for m in plan.for_rank(r)]) for r in range(2)]
        beside_the_long_one[attention] = next(rows.size - 1 for rows in held if 0 in rows)
    # Without quadratic work tokens are equal, four short ones beside the long; with all of it, it is alone.
    assert beside_the_long_one["4*causal"] == 0
    assert 0 < beside_the_long_one["1*causal + 3*linear"] < 4
    assert beside_the_long_one["4*linear"] == 4
