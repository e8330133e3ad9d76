"""Micro-batches that cost something are shared and filled as by the slow twin."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from balancer._kernels import counted
from balancer.reference import counted as twin

UNIT = 1 << 16
units = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1000, 54_321]), st.sampled_from([UNIT, UNIT, UNIT // 3, 2 * UNIT]),
        st.sampled_from([300, 300, 450]),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


def arrays(*columns):
    return [np.array(column, np.int64) for column in columns]


@given(
    tokens=st.lists(st.one_of(st.integers(1, 300), st.sampled_from([100, 150])), min_size=1, max_size=30),
    units=units,
    scale=st.sampled_from([1, 1000]),
    fixed=st.sampled_from([1, 70, 20_000]),
    needed=st.sets(st.integers(1, 20), min_size=1, max_size=4),
    dense=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    patience=st.sampled_from([0.0, 0.0, 1.0, 8.0]),
)
def test_counted_micro_batches_equal_their_slow_twin(
    tokens, units, scale, fixed, needed, dense, patience
):  # fmt: skip
    tokens = sorted(tokens, reverse=True)
    work = [scale * n + n * n // 7 for n in tokens]
    load, pace, room = map(list, zip(*units, strict=True))
    needed = sorted(needed)
    found = counted.fill_counted(
        *arrays(work, tokens, load, pace, room), UNIT, fixed, np.array(needed), dense, patience
    )
    expected = twin.fill_counted(
        work, tokens, load, pace, room, UNIT, fixed, needed, dense, patience
    )  # fmt: skip
    assert tuple(x.tolist() for x in found) == expected


@given(units=units, work=st.integers(1, 10**9), batches=st.integers(1, 40), fixed=st.sampled_from([1, 10**6]))
def test_shares_equal_their_slow_twin_and_are_as_many_as_asked_for(units, work, batches, fixed):
    load, pace, _ = map(list, zip(*units, strict=True))
    power = sum(UNIT / slow for slow in pace)
    due = sum(busy * UNIT / slow for busy, slow in zip(load, pace, strict=True))
    end = (due + work + fixed * batches) / power
    counts = counted.share_counts(*arrays(load, pace), UNIT, work, batches, fixed, end)
    assert counts.tolist() == twin.share_counts(load, pace, UNIT, work, batches, fixed, end)
    assert counts.sum() == batches
