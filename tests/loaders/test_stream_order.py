"""The order of several streams together, against its definition written out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loaders.streams.order import ENDLESS, first_in_turn, in_turn

streams = st.lists(
    st.tuples(st.integers(0, 6), st.one_of(st.none(), st.integers(0, 6))), min_size=1, max_size=6
)


def written_out(begun, ends, count):
    """(number, rank) of the next ``count`` samples."""
    keys = [
        (number, rank)
        for rank, (first, end) in enumerate(zip(begun, ends, strict=True))
        for number in range(first, min(end, first + 40))
    ]
    return sorted(keys)[:count]


@given(streams=streams, count=st.integers(0, 20))
def test_the_counts_are_those_of_the_order_written_out(streams, count):
    begun = np.array([first for first, _ in streams], np.int64)
    ends = np.array([ENDLESS if more is None else first + more for first, more in streams], np.int64)
    keys = written_out(begun.tolist(), ends.tolist(), count)
    expected = [sum(rank == own for _, rank in keys) for own in range(len(streams))]
    assert first_in_turn(begun, ends, count).tolist() == expected


@given(streams=streams, sizes=st.lists(st.integers(1, 9), max_size=6))
def test_steps_one_after_another_are_one_long_run(streams, sizes):
    begun = np.array([first for first, _ in streams], np.int64)
    ends = np.array([ENDLESS if more is None else first + more for first, more in streams], np.int64)
    together = first_in_turn(begun, ends, sum(sizes))
    at = begun
    for size in sizes:
        at = at + first_in_turn(at, ends, size)
    assert (at - begun).tolist() == together.tolist()


def test_rows_come_by_number_then_by_rank_then_by_piece():
    order = in_turn(np.array([1, 0, 0, 0]), np.array([0, 1, 0, 0], np.int32), np.array([0, 0, 8, 0]))
    assert order.tolist() == [3, 2, 1, 0]
