import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.batches.joins import Join, join_columns, joins_of

JOINS = {
    "pixels": Join(),
    "positions": Join(axis=-1, per_token=True),
    "index": Join(axis=-1, per_token=True, fill=-1, running=True),
}


@given(
    lengths=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3), st.booleans()), min_size=1, max_size=6)
)
def test_samples_lie_end_to_end_and_those_without_a_value_count_up(lengths):
    columns = {"pixels": [], "positions": [], "index": [], "name": []}
    for number, (tokens, features, has) in enumerate(lengths):
        features = min(features, tokens)
        columns["pixels"].append(np.full((features, 2), number) if has else None)
        columns["positions"].append(np.full((3, tokens), 7) if has else None)
        row = np.full((1, tokens), -1)
        row[0, :features] = np.arange(features)
        columns["index"].append(row if has else None)
        columns["name"].append(number)
    joined, token_rows, rest = join_columns(columns, JOINS, [tokens for tokens, _, _ in lengths])
    assert rest == {"name": list(range(len(lengths)))}
    if not any(has for _, _, has in lengths):
        assert (joined, token_rows) == ({}, {})
        return
    expected = [n for n, (tokens, count, has) in enumerate(lengths) if has for _ in range(min(count, tokens))]
    assert joined["pixels"][:, 0].tolist() == expected
    at = 0
    for tokens, _, has in lengths:
        part = token_rows["positions"][:, at : at + tokens]
        assert part.tolist() == ([[7] * tokens] * 3 if has else [list(range(tokens))] * 3)
        at += tokens
    index = token_rows["index"][0]
    assert index.size == at
    assert index[index >= 0].tolist() == list(range(len(expected)))  # each feature once, in order


def test_two_sources_must_join_a_key_alike():
    assert joins_of([{"a": Join()}, {}, {"a": Join(), "b": Join(axis=1)}]) == {"a": Join(), "b": Join(axis=1)}
    with pytest.raises(ValueError, match="must join 'a' in the same way"):
        joins_of([{"a": Join()}, {"a": Join(axis=1)}])
