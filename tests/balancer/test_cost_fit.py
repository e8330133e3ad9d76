import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from balancer.cost import Communication, CostModel
from balancer.costs.nnls import nonnegative_least_squares

LINK = Communication(bytes_per_token=1e6, intra_node=1e11, inter_node=1e10)


def measurements(cost, rng, *, rows=40, degrees=(1,), repeats=1, noise=0.0):
    """Micro-batches of random samples; noise only ever adds time."""
    measured = []
    for _ in range(rows):
        lengths = np.minimum(rng.lognormal(7, 1.2, rng.integers(1, 8)).astype(int) + 1, 60_000)
        degree = int(rng.choice(degrees))
        seconds = cost.fixed_s(degree) + cost(lengths, degree).sum()
        measured += [(lengths, degree, seconds * (1 + noise * rng.exponential())) for _ in range(repeats)]
    return measured


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["causal", "window:1024", "3*linear + 1*causal"]),
    st.sampled_from([0.0, 0.05]),
    st.sampled_from([0.0, 1e-8]),
)
def test_exact_measurements_give_back_the_coefficients(seed, attention, fixed, quadratic):
    true = CostModel(2e-4, quadratic, fixed, attention=attention)
    fitted = CostModel.fit(measurements(true, np.random.default_rng(seed)), attention=attention)
    assert fitted.linear == pytest.approx(2e-4, rel=1e-6)
    assert fitted.quadratic == pytest.approx(quadratic, rel=1e-6, abs=1e-15)
    assert fitted.fixed == pytest.approx(fixed, rel=1e-6, abs=1e-9)
    assert fitted.report.max_error < 1e-9


def test_communication_is_fitted_for_each_degree():
    true = CostModel(2e-4, 1e-8, 0.05, communication=LINK)
    fitted = CostModel.fit(measurements(true, np.random.default_rng(0), rows=80, degrees=(1, 2, 4)))
    for degree in (1, 2, 4):
        np.testing.assert_allclose(fitted([500, 20_000], degree), true([500, 20_000], degree), rtol=1e-6)
    assert fitted.degrees == (1, 2, 4)


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_outliers_bend_little(seed):
    true = CostModel(2e-4, 1e-8, 0.05)
    rows = measurements(true, np.random.default_rng(seed), rows=60, repeats=5, noise=0.1)
    rows += [(lengths, degree, 10 * seconds) for lengths, degree, seconds in rows[::50]]
    spoiled = [([3000, 200], 1, 50.0), ([700], 1, 20.0)]
    fitted = CostModel.fit(rows + spoiled, beyond="allow")
    np.testing.assert_allclose(fitted([500, 4000, 40_000]), true([500, 4000, 40_000]), rtol=0.08)
    assert fitted.report.measurements == len(rows) + 2
    assert fitted.report.rows == 62
    assert fitted.report.median_error < 0.05 < fitted.report.max_error


def test_the_fit_knows_its_range():
    fitted = CostModel.fit(measurements(CostModel(1e-4, 1e-8), np.random.default_rng(0)), beyond="raise")
    assert fitted.max_length == fitted.report.longest
    fitted([fitted.max_length])
    with pytest.raises(ValueError, match="extrapolation"):
        fitted([fitted.max_length + 1])
    with pytest.raises(ValueError, match="cp_degree 2 was not measured"):
        fitted([10], 2)


def test_a_scalar_length_is_one_sample():
    rows = [(n, 1, 0.1 + 1e-4 * n + 1e-8 * n * (n + 1) / 2) for n in (100, 1000, 5000, 20_000)]
    assert CostModel.fit(rows).quadratic == pytest.approx(1e-8, rel=1e-6)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([], "0 different micro-batches"),
        (
            [([100], 1, 0.1), ([100], 1, 0.2)],
            "1 different micro-batches cannot tell fixed, linear, quadratic",
        ),
        ([([100] * k, 1, 0.1 * k) for k in (1, 2, 3, 4)], "cannot tell linear, quadratic apart"),
        ([([100], 1, 0.0)], "measurement 0 .*positive"),
        ([([100], 1, 0.1), ([100], 0, 0.1)], "measurement 1 .*cp_degree"),
        ([([-5], 1, 0.1)], "measurement 0 .*row 0 has -5"),
        ([([100], 0.1)], "measurement 0 must be"),
        ([([100 * k, 7], 2, 0.1 * k) for k in (1, 2, 3, 9)], "communication at degree 2"),
    ],
)
def test_measurements_that_say_too_little_are_refused(rows, what):
    with pytest.raises(ValueError, match=what):
        CostModel.fit(rows)


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 6), st.booleans())
def test_nonnegative_least_squares_is_as_close_as_scipys(seed, rows, columns, positive):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(rows, columns)) * 10.0 ** rng.integers(-8, 8, size=columns)
    b = rng.normal(size=rows)
    if positive:
        a = np.abs(a)
    x = nonnegative_least_squares(a, b)
    assert np.all(x >= 0)
    assert np.linalg.norm(a @ x - b) <= nnls(a, b)[1] + 1e-9
