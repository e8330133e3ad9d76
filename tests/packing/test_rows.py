"""Questions about rows of numbers give what Python gives."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packing._rows import extremes, float_sum, int_sum

rows = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@given(row=rows)
def test_extremes_and_sums_are_those_of_python(dtype, row):
    values = np.array(row, dtype)
    assert extremes(values) == (min(row), max(row))
    assert int_sum(values) == sum(row)  # also where it takes more than the row's own bits
    assert math.isclose(float_sum(values), sum(row), abs_tol=1e-3)


def test_a_row_is_read_wherever_it_lies():
    table = np.arange(12).reshape(3, 4)
    assert extremes(table[:, 1]) == (1, 9)
    assert int_sum(table[::2, 3]) == 14
    assert int_sum(np.zeros(0, np.int64)) == 0


def test_a_sum_of_floats_does_not_run_over():
    assert float_sum(np.full(8, 2**62)) == 2.0**65
