"""Who rides in the free room of wide micro-batches: as one by one, and within 64 bits."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from balancer._kernels.ride import ride
from balancer.reference import riders as twin

UNIT = 1 << 16


@given(
    tokens=st.lists(st.integers(1, 5000), max_size=40),
    batches=st.lists(
        st.tuples(
            st.integers(-1, 1), st.sampled_from([1, 2, 4]), st.integers(0, 8000), st.integers(0, 30_000),
            st.integers(0, 3),
        ),
        max_size=6,
    ),
    pace=st.lists(st.sampled_from([UNIT, UNIT // 2, 3 * UNIT]), min_size=4, max_size=4),
    load=st.lists(st.integers(0, 10_000), min_size=4, max_size=4),
)  # fmt: skip
def test_riding_equals_its_slow_twin(tokens, batches, pace, load):
    tokens = sorted(tokens, reverse=True)
    time = [[3 * n for n in tokens], [2 * n + 5 for n in tokens]]
    level, degree, free, end, block = (
        (list(column) for column in zip(*batches, strict=True)) if batches else ([],) * 5
    )
    first = [b // d * d for b, d in zip(block, degree, strict=True)]
    last = [f + d for f, d in zip(first, degree, strict=True)]
    expected = twin.ride(tokens, time, level, degree, free, end, first, last, pace, UNIT, load)
    arrays = [np.array(x, np.int64) for x in (level, degree, free, end, first, last, pace)]
    loads = np.array(load, np.int64)
    rides = ride(
        np.array(tokens, np.int64), np.array(time, np.int64).reshape(2, -1), *arrays, UNIT, loads
    )  # fmt: skip
    assert (rides.tolist(), loads.tolist()) == expected


def test_hours_on_slow_ranks_stay_within_64_bits():
    # 10,000 s at a thousandth of the speed are 1e16 ns; in 2**-16 nanoseconds they would be 6.6e20.
    slow = np.full(2, 1000 * UNIT, np.int64)
    one = np.ones(1, np.int64)
    for end, rides in ((10**16 - 1, -1), (10**16, 0)):
        load = np.zeros(2, np.int64)
        found = ride(
            np.array([100]), np.array([[10**13]]), 0 * one, 2 * one, 1000 * one, end * one, 0 * one, 2 * one,
            slow, UNIT, load,
        )  # fmt: skip
        assert found.tolist() == [rides]
        assert load.tolist() == [10**16 * (rides + 1)] * 2
