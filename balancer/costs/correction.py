"""Corrects coefficients and rank speeds from the step times of a running job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.costs.attention import attended_pairs
from balancer.costs.checks import check_lengths
from balancer.costs.measured import MeasuredTable
from balancer.costs.model import CostModel
from balancer.plan import StepPlan
from balancer.topology import Topology

_PRIOR = (
    0.02  # weight of "attention is off by the same factor as the rest", as a share of what attention shows
)
_REACH = 10.0  # a coefficient is corrected by at most this factor
_STEP_REACH = 2.0  # and one step counts as at most this factor away from what was expected


class OnlineCorrection:
    """A cost model and rank speeds that follow measured times, with hysteresis.

    Two factors are learned: of attention, and of all else together. More than that, balanced steps cannot
    tell apart: they give every rank about the same number of micro-batches and of tokens.

    Every rank feeds in the same gathered times and so gets the same correction: sums are exactly rounded
    (`math.fsum`), the rest is ``+ - * /`` in a fixed order. What planners use changes only when an estimate
    has been off by more than ``threshold`` for ``patience`` steps on end, so plans do not flutter with noise.

    Args:
        cost: the model to correct.
        ranks: data ranks.
        threshold: relative change that is worth a change of plans. A slow rank counts as nominal again below
            half of it.
        patience: steps on end for which that must hold.
        smoothing: weight of the newest step in the running estimates.
        warmup: first steps to leave out, since they compile and allocate.

    Raises:
        ValueError: an argument out of its range.
    """

    def __init__(
        self,
        cost: CostModel,
        ranks: int,
        *,
        threshold: float = 0.1,
        patience: int = 5,
        smoothing: float = 0.1,
        warmup: int = 3,
    ) -> None:
        if ranks < 1 or patience < 1 or warmup < 0 or not 0 < threshold < 1 or not 0 < smoothing <= 1:
            raise ValueError(
                "OnlineCorrection needs ranks >= 1, patience >= 1, warmup >= 0, 0 < threshold < 1 and 0 < "
                f"smoothing <= 1, got {ranks}, {patience}, {warmup}, {threshold}, {smoothing}."
            )
        self._base = cost
        self._threshold, self._patience = threshold, patience
        self._smoothing, self._warmup = smoothing, warmup
        self._steps = 0
        self._normal = [
            0.0,
            0.0,
            0.0,
        ]  # smoothed means of rest * rest, rest * attention, attention * attention
        self._target = [0.0, 0.0]
        self._factors = [1.0, 1.0]  # of the rest, of attention
        self._published_factors = [1.0, 1.0]
        self._factors_off = 0
        self._pace = np.ones(ranks)  # smoothed predicted / measured of each rank
        self._speed = np.ones(ranks)
        self._published_speed = np.ones(ranks)
        self._speed_off = np.zeros(ranks, dtype=np.int64)

    @property
    def cost(self) -> CostModel:
        """The corrected model; the same object until a correction is due."""
        if self._published_factors == [1.0, 1.0]:
            return self._base
        return _scaled(self._base, self._published_factors)

    @property
    def speed(self) -> NDArray[np.float64]:
        """[R] corrected speeds, 1.0 = the median rank."""
        return self._published_speed.copy()

    def topology(self, topology: Topology) -> Topology:
        """``topology`` with the corrected speeds."""
        return replace(topology, speed=self.speed)

    def update(self, plan: StepPlan, lengths: ArrayLike, measured_s: ArrayLike) -> bool:
        """Take in one finished step; whether `cost` or `speed` changed.

        Args:
            plan: the step's plan.
            lengths: [S] the step's lengths, as the plan was made from them.
            measured_s: [R] seconds that each rank computed, without its waits; NaN where unknown. Must be
                gathered, so that every rank passes the same numbers.

        Raises:
            ValueError: times that are negative or infinite, or not one a rank.
        """
        measured = np.asarray(measured_s, dtype=np.float64)
        if measured.shape != self._pace.shape or np.any(np.isinf(measured) | (measured < 0)):
            raise ValueError(
                f"measured_s must hold {self._pace.size} times of at least 0 s, one a rank (NaN: unknown), "
                f"got shape {measured.shape}: {measured!r:.200}."
            )
        self._steps += 1
        if self._steps <= self._warmup:
            return False
        parts = rank_parts(self._base, plan, check_lengths(lengths))
        known = np.isfinite(measured) & (measured > 0) & (parts.sum(axis=1) > 0)
        if not known.any():
            return False
        self._learn_factors(parts, measured, known)
        self._learn_speeds(parts, measured, known)
        return self._publish()

    def _learn_factors(
        self, parts: NDArray[np.float64], measured: NDArray[np.float64], known: NDArray[np.bool_]
    ) -> None:
        expected = _predict(parts, self._factors)
        nominal = np.clip(measured * self._speed, expected / _STEP_REACH, expected * _STEP_REACH)[known]
        rest, attention = (parts[known] / nominal[:, None]).T
        self._normal = self._smoothed(self._normal, [rest * rest, rest * attention, attention * attention])
        self._target = self._smoothed(self._target, [rest, attention])
        self._factors = [min(max(f, 1.0 / _REACH), _REACH) for f in _solve(self._normal, self._target)]

    def _smoothed(self, old: list[float], columns: list[NDArray[np.float64]]) -> list[float]:
        """Running means of ``columns``, exactly rounded sums, so that every machine finds the same bits."""
        means = [math.fsum(column.tolist()) / column.size for column in columns]
        return [mean + (1.0 - self._smoothing) * (was - mean) for was, mean in zip(old, means, strict=True)]

    def _learn_speeds(
        self, parts: NDArray[np.float64], measured: NDArray[np.float64], known: NDArray[np.bool_]
    ) -> None:
        ratio = _predict(parts, self._factors)[known] / measured[known]
        pace = self._pace[known]
        ratio = np.clip(ratio, pace / _STEP_REACH, pace * _STEP_REACH)
        self._pace[known] = pace + self._smoothing * (ratio - pace)
        self._speed = self._pace / float(np.median(self._pace))

    def _publish(self) -> bool:
        published = self._published_factors
        off = any(
            abs(new / old - 1.0) > self._threshold for new, old in zip(self._factors, published, strict=True)
        )
        self._factors_off = self._factors_off + 1 if off else 0
        new_cost = self._factors_off >= self._patience
        if new_cost:
            self._published_factors, self._factors_off = list(self._factors), 0
        # Near-nominal ranks aim at exactly 1, so that a healthy cluster keeps speeds of 1.
        aim = np.where(np.abs(self._speed - 1.0) <= self._threshold / 2, 1.0, self._speed)
        away = np.abs(aim / self._published_speed - 1.0) > self._threshold
        away |= (aim == 1.0) & (self._published_speed != 1.0)
        self._speed_off = np.where(away, self._speed_off + 1, 0)
        due = self._speed_off >= self._patience
        self._published_speed = np.where(due, aim, self._published_speed)
        self._speed_off[due] = 0
        return new_cost or bool(due.any())

    def state_dict(self) -> dict[str, Any]:
        """Plain data from which `load_state_dict` goes on exactly."""
        return {
            "steps": self._steps,
            "normal": list(self._normal),
            "target": list(self._target),
            "factors": list(self._factors),
            "published_factors": list(self._published_factors),
            "factors_off": self._factors_off,
            "pace": self._pace.tolist(),
            "speed": self._speed.tolist(),
            "published_speed": self._published_speed.tolist(),
            "speed_off": self._speed_off.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state. With another number of ranks speeds start anew; coefficients are kept."""
        self._steps = int(state["steps"])
        self._normal = list(state["normal"])
        self._target, self._factors = list(state["target"]), list(state["factors"])
        self._published_factors = list(state["published_factors"])
        self._factors_off = int(state["factors_off"])
        if len(state["pace"]) == self._pace.size:
            self._pace = np.array(state["pace"])
            self._speed = np.array(state["speed"])
            self._published_speed = np.array(state["published_speed"])
            self._speed_off = np.array(state["speed_off"], dtype=np.int64)


def rank_parts(cost: CostModel, plan: StepPlan, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """[R, 2] predicted seconds of each rank at nominal speed: first all but attention, then attention.

    lengths: [S] of the step. Sums are over whole nanoseconds, hence the same in any order.
    """
    batches = plan.micro_batches
    sizes = np.diff(batches.offsets)
    degree_of = np.repeat(batches.cp_degree, sizes)
    batch_of = np.repeat(np.arange(len(batches)), sizes)
    num_tokens = lengths[batches.order]
    parts_ns = np.zeros((len(batches), 2), dtype=np.int64)
    for degree in np.unique(batches.cp_degree).tolist():
        parts_ns[batches.cp_degree == degree, 0] = cost.fixed_nanoseconds(degree)
        mine = degree_of == degree
        pair_s = cost.quadratic * attended_pairs(num_tokens[mine], cost.attention) / degree
        pair_ns = np.floor(pair_s * 1e9 + 0.5).astype(np.int64)
        total_ns = cost.nanoseconds(num_tokens[mine], degree)
        np.add.at(parts_ns[:, 0], batch_of[mine], total_ns - pair_ns)
        np.add.at(parts_ns[:, 1], batch_of[mine], pair_ns)
    rank_ns = np.zeros((plan.ranks + 1, 2), dtype=np.int64)
    np.add.at(rank_ns, batches.first_rank, parts_ns)
    np.subtract.at(rank_ns, batches.first_rank + batches.cp_degree, parts_ns)
    parts_s: NDArray[np.float64] = np.cumsum(rank_ns, axis=0)[:-1] / 1e9
    return parts_s


def _predict(parts: NDArray[np.float64], factors: list[float]) -> NDArray[np.float64]:
    """[R] seconds with corrected parts."""
    return parts[:, 0] * factors[0] + parts[:, 1] * factors[1]


def _solve(normal: list[float], target: list[float]) -> list[float]:
    """Factors (x, y) of least squares with the prior ``_PRIOR * attention**2 * (y - x)**2``."""
    prior = _PRIOR * normal[2]
    a, b, c = normal[0] + prior, normal[1] - prior, normal[2] + prior
    determinant = a * c - b * b
    if determinant <= 1e-12 * a * c:  # no attention at all, or nothing but attention
        common = (target[0] + target[1]) / (normal[0] + 2.0 * normal[1] + normal[2])
        return [common, common]
    return [(target[0] * c - target[1] * b) / determinant, (a * target[1] - b * target[0]) / determinant]


def _scaled(cost: CostModel, factors: list[float]) -> CostModel:
    rest, attention = factors
    table, link = cost.table, cost.communication
    if table is not None:
        table = MeasuredTable(lengths=table.lengths, degrees=table.degrees, seconds=table.seconds * rest)
    return replace(
        cost,
        fixed=cost.fixed * rest,
        linear=cost.linear * rest,
        quadratic=cost.quadratic * attention,
        communication=None if link is None else link.slowed(rest),
        table=table,
        source=f"{cost.source}, attention corrected by {attention:.3g}, the rest by {rest:.3g}",
    )
