"""Coefficients from measured micro-batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.costs.attention import attended_pairs
from balancer.costs.checks import check_coefficient, check_degree, check_lengths
from balancer.costs.communication import Communication
from balancer.costs.model import CostModel, FitReport
from balancer.costs.nnls import nonnegative_least_squares

_ROBUST_ROUNDS = 20
_COLLINEAR = 1e-9

Row = tuple[NDArray[np.int64], int, float]


def fit_cost(
    measurements: Iterable[tuple[Any, Any, Any]],
    *,
    attention: str = "causal",
    beyond: str = "warn",
    source: str = "fit",
) -> CostModel:
    """The non-negative coefficients closest to measured micro-batch times.

    Of equal micro-batches the fastest counts, since noise only ever adds time. Errors are relative, and
    those far beyond the usual are weighted down (Huber's weights), so that one disturbed row bends nothing.
    Coefficients: fixed, linear, quadratic, and for each degree above 1 seconds on the wire per token.

    Args:
        measurements: rows of (lengths of the samples, CP degree, seconds of forward + backward).
        attention: which pairs the measured model attends to, see `balancer.costs.attention`.
        beyond: what a prediction outside of the measured lengths and degrees does: ``"warn"``, ``"raise"``
            or ``"allow"``.
        source: what messages call the model.

    Raises:
        ValueError: a row that is not such a triple, or measurements that cannot tell the coefficients apart.
    """
    rows = [_check_row(i, row) for i, row in enumerate(measurements)]
    fastest = _fastest(rows)
    degrees = tuple(sorted({degree for _, degree, _ in fastest}))
    wide = tuple(degree for degree in degrees if degree > 1)
    a = _features(fastest, attention, wide)
    seconds = np.array([row[2] for row in fastest])
    _check_distinguishable(a / seconds[:, None], ["fixed", "linear", "quadratic", *map(_wire_name, wide)])
    x = _robust_fit(a / seconds[:, None])
    error = np.abs(a @ x / seconds - 1.0)
    present = [row[0] for row in fastest if row[0].size]
    report = FitReport(
        rows=len(fastest),
        measurements=len(rows),
        shortest=int(min(lengths.min() for lengths in present)),
        longest=int(max(lengths.max() for lengths in present)),
        degrees=degrees,
        median_error=float(np.median(error)),
        max_error=float(error.max()),
    )
    return CostModel(
        float(x[1]),
        float(x[2]),
        float(x[0]),
        attention=attention,
        communication=_communication(wide, x[3:]),
        max_length=report.longest,
        degrees=degrees,
        beyond=beyond,
        source=source,
        report=report,
    )


def _check_row(i: int, row: tuple[Any, Any, Any]) -> Row:
    try:
        lengths, degree, seconds = row
        return (
            np.sort(check_lengths(lengths)),
            check_degree(degree),
            check_coefficient("seconds", seconds, positive=True),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"measurement {i} must be (lengths, cp_degree, seconds), got {row!r:.200}: {error}"
        ) from error


def _fastest(rows: list[Row]) -> list[Row]:
    """The fastest of each kind of micro-batch, in order of first appearance."""
    best: dict[tuple[bytes, int], Row] = {}
    for row in rows:
        key = (row[0].tobytes(), row[1])
        if key not in best or row[2] < best[key][2]:
            best[key] = row
    return list(best.values())


def _features(rows: list[Row], attention: str, wide: tuple[int, ...]) -> NDArray[np.float64]:
    """[N, 3 + W] what multiplies each coefficient: 1, tokens / d, pairs / d, tokens at each wide degree."""
    features = np.zeros((len(rows), 3 + len(wide)))
    for i, (lengths, degree, _) in enumerate(rows):
        num_tokens = float(lengths.sum())
        pairs = float(attended_pairs(lengths, attention).sum(dtype=np.float64))
        features[i, :3] = 1.0, num_tokens / degree, pairs / degree
        if degree > 1:
            features[i, 3 + wide.index(degree)] = num_tokens
    return features


def _wire_name(degree: int) -> str:
    return f"communication at degree {degree}"


def _check_distinguishable(a: NDArray[np.float64], names: list[str]) -> None:
    """Raises ValueError naming the coefficients that these rows cannot tell apart."""
    norms = np.linalg.norm(a, axis=0)
    used = np.flatnonzero(norms > 0)
    if a.shape[0] >= used.size > 0:
        _, singular, directions = np.linalg.svd(a[:, used] / norms[used])
        if singular[-1] > _COLLINEAR * singular[0]:
            return
        mixed = used[np.abs(directions[-1]) > 0.1]
    else:
        mixed = used
    mixed_names = ", ".join(names[k] for k in mixed) or "coefficients"
    raise ValueError(
        f"{a.shape[0]} different micro-batches cannot tell {mixed_names} apart. Measure "
        "short and long samples, one and several in a micro-batch, and degree 1 beside the others."
    )


def _robust_fit(a: NDArray[np.float64]) -> NDArray[np.float64]:
    """[K] non-negative x with ``a @ x`` close to 1 in most rows."""
    weight = np.ones(a.shape[0])
    x = nonnegative_least_squares(a, weight)
    for _ in range(_ROBUST_ROUNDS):
        residual = np.abs(a @ x - 1.0)
        usual = max(1.4826 * float(np.median(residual)), 1e-12)  # the deviation of a normal distribution
        weight = np.sqrt(np.minimum(1.0, 1.345 * usual / np.maximum(residual, 1e-300)))
        previous, x = x, nonnegative_least_squares(a * weight[:, None], weight)
        if np.allclose(previous, x, rtol=1e-9, atol=0.0):
            break
    return x


def _communication(wide: tuple[int, ...], wire_s: NDArray[np.float64]) -> Communication | None:
    """What the fit found on the links; rank-time raised to where it never falls with the degree."""
    if not wide or not wire_s.any():
        return None
    rank_s = np.maximum.accumulate(np.array(wide) * wire_s)
    measured = {degree: float(s) / degree for degree, s in zip(wide, rank_s, strict=True)}
    return Communication(bytes_per_token=0.0, intra_node=1.0, inter_node=1.0, measured_s_per_token=measured)
