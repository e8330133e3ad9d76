"""Shards of a micro-batch: every token once, zigzag, equal causal work."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.sharding import aligned_lengths, alignment, shard

many_lengths = st.lists(st.integers(0, 40), max_size=8)
degrees = st.integers(1, 6)


@given(lengths=many_lengths, degree=degrees, tensor_degree=st.integers(1, 3))
def test_every_token_stands_on_exactly_one_rank(lengths, degree, tensor_degree):
    shards = [shard(lengths, degree, rank, tensor_degree=tensor_degree) for rank in range(degree)]
    index = np.concatenate([one.index for one in shards])
    assert sorted(index[index >= 0]) == list(range(sum(lengths)))
    assert index.size == aligned_lengths(lengths, degree, tensor_degree=tensor_degree).sum()
    assert len({one.index.size for one in shards}) == 1


@given(lengths=many_lengths, degree=degrees)
def test_positions_and_index_name_the_same_token(lengths, degree):
    starts = np.cumsum(lengths) - lengths if lengths else np.zeros(0)
    for rank in range(degree):
        mine = shard(lengths, degree, rank)
        for sample, length in enumerate(lengths):
            here = slice(mine.offsets[sample], mine.offsets[sample + 1])
            positions, index = mine.positions[here], mine.index[here]
            expected = np.where(positions < length, positions + starts[sample], -1)
            np.testing.assert_array_equal(index, expected)


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5), degree=st.integers(2, 6))
def test_rank_r_holds_chunk_r_and_its_mirror(lengths, degree):
    for sample, padded in enumerate(aligned_lengths(lengths, degree)):
        chunks = np.arange(padded).reshape(2 * degree, -1)
        for rank in range(degree):
            mine = shard(lengths, degree, rank)
            here = mine.positions[mine.offsets[sample] : mine.offsets[sample + 1]]
            np.testing.assert_array_equal(here, np.concatenate([chunks[rank], chunks[2 * degree - 1 - rank]]))


@given(chunks=st.integers(1, 20), degree=st.integers(2, 8))
def test_causal_work_is_equal_on_all_ranks(chunks, degree):
    length = chunks * 2 * degree
    work = {int((shard([length], degree, rank).positions + 1).sum()) for rank in range(degree)}
    assert len(work) == 1


@pytest.mark.parametrize(
    ("degree", "tensor_degree", "factor"), [(1, 1, 1), (2, 1, 4), (2, 4, 8), (3, 3, 18), (4, 2, 8)]
)
def test_lengths_are_padded_to_the_least_multiple_that_divides(degree, tensor_degree, factor):
    assert alignment(degree, tensor_degree=tensor_degree) == factor


def test_padding_is_the_smallest_that_fits():
    assert aligned_lengths([7], 2).tolist() == [8]
    assert aligned_lengths([137, 2041, 89], 8).tolist() == [144, 2048, 96]


def test_a_wrong_rank_or_length_gets_a_sentence():
    with pytest.raises(ValueError, match=r"cp_rank must lie in 0\.\.1 for degree 2, got 2"):
        shard([4], 2, 2)
    with pytest.raises(ValueError, match="non-negative"):
        shard([-1], 1, 0)
    with pytest.raises(ValueError, match="degree must be a whole number"):
        aligned_lengths([4], 0)
