import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.cost import CostModel, CostRangeWarning

# DistCA's published H100 table: attention of one document, milliseconds.
KILO_TOKENS = np.array([1, 2, 4, 8, 16, 32, 64])
ATTENTION_MS = np.array([0.133, 0.355, 1.055, 3.71, 13.5, 51.9, 206.0])


def table():
    return CostModel.from_table(KILO_TOKENS * 1024, ATTENTION_MS / 1e3, fixed=0.01)


def test_measured_lengths_cost_what_was_measured():
    np.testing.assert_allclose(table()(KILO_TOKENS * 1024), ATTENTION_MS / 1e3, rtol=1e-12)
    assert table().fixed_ns == 10_000_000


@given(st.lists(st.integers(0, 65536), min_size=1, max_size=30))
def test_between_measurements_costs_are_those_of_numpys_interpolation(lengths):
    expected = np.interp(lengths, [0, *(KILO_TOKENS * 1024)], [0, *(ATTENTION_MS / 1e3)])
    np.testing.assert_allclose(table()(lengths), expected, rtol=1e-12)
    np.testing.assert_array_equal(table().nanoseconds(lengths), np.floor(table()(lengths) * 1e9 + 0.5))


def test_beyond_the_table_seconds_per_token_go_on_growing_and_a_warning_says_so():
    with pytest.warns(CostRangeWarning, match="65536"):
        seconds = table()([131072])[0]
    assert 4 * 0.206 * 0.95 < seconds < 4 * 0.206 * 1.05  # attention is quadratic by then


def test_each_degree_has_its_row_and_others_are_refused():
    cost = CostModel.from_table([100, 200], {1: [1.0, 2.0], 2: [0.6, 1.1]})
    assert cost([150], 2)[0] == pytest.approx(0.85)
    with pytest.raises(ValueError, match="cp_degree 4 was not measured; the table has 1, 2"):
        cost([150], 4)


@pytest.mark.parametrize(
    ("lengths", "seconds", "what"),
    [
        ([1, 2], [2.0, 1.0], "must rise with the length.*length 2"),
        ([1, 2], {1: [2.0, 3.0], 2: [0.9, 1.5]}, "degree 2, length 1"),
        ([1, 2], [1.0, float("nan")], "length 2 has nan"),
        ([1, 2], [-1.0, 1.0], "length 1 has -1"),
        ([1, 1], [1.0, 1.0], "differ from each other"),
        ([1, 2], [1.0], "shape"),
        ([], [], "at least one"),
    ],
)
def test_bad_tables_are_named(lengths, seconds, what):
    with pytest.raises(ValueError, match=what):
        CostModel.from_table(lengths, seconds)


@given(st.lists(st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=4), min_size=3, max_size=3))
def test_smoothing_gives_the_least_monotone_table(rows):
    lengths, degrees = np.array([10, 20, 30, 40]), (1, 2, 3)
    cost = CostModel.from_table(lengths, dict(zip(degrees, rows, strict=True)), smooth=True)
    smooth = np.array([cost(lengths, degree) for degree in degrees])
    rank_s, raw_s = smooth * np.array(degrees)[:, None], np.array(rows) * np.array(degrees)[:, None]
    assert np.all(np.diff(smooth, axis=1) >= -1e-15)
    assert np.all(np.diff(rank_s, axis=0) >= -1e-15)
    least = np.maximum.accumulate(np.maximum.accumulate(raw_s, axis=1), axis=0)
    np.testing.assert_allclose(rank_s, least, rtol=1e-12)


def test_a_table_survives_its_file(tmp_path):
    cost = CostModel.from_table([100, 200], {1: [1 / 3, 2.0], 2: [0.6, 1.1]}, fixed=0.1)
    cost.save(tmp_path / "cost.json")
    loaded = CostModel.load(tmp_path / "cost.json")
    for degree in (1, 2):
        np.testing.assert_array_equal(loaded([50, 150], degree), cost([50, 150], degree))


def test_a_table_excludes_coefficients():
    with pytest.raises(ValueError, match="takes the place"):
        CostModel(1e-4, table=table().table)
