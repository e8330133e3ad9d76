"""Mixture weights that change with the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packing.checks import nearest

Weights = Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Weights at some steps, and what lies between them.

    Args:
        points: weights by step; the first holds before the first step, the last for ever.
        kind: ``"linear"``: weights move in a straight line from point to point, step by step; ``"constant"``:
            they hold until the next point.

    ``Schedule({0: {"web": 1, "code": 0}, 100: {"web": 1, "code": 0}, 200: {"web": 1, "code": 1}})``
    """

    points: Mapping[int, Weights]
    kind: str = "linear"

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("a Schedule needs at least one point: {step: {source: weight}}.")
        if self.kind not in ("linear", "constant"):
            raise ValueError(f'Schedule.kind must be "linear" or "constant", got {self.kind!r}.')
        if any(int(step) != step or step < 0 for step in self.points):
            raise ValueError(f"a Schedule's steps must be whole numbers from 0, got {sorted(self.points)}.")

    @property
    def names(self) -> list[str]:
        """Sources that any point names, in the order they first appear."""
        return list(dict.fromkeys(name for weights in self.points.values() for name in weights))

    def describe(self) -> Any:
        """Plain values, for a state's identity."""
        return {"kind": self.kind, "points": {str(step): dict(w) for step, w in sorted(self.points.items())}}

    def rows(self, names: list[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Steps [J] from which each row of weights [J, n] holds; a ramp has one row a step."""
        steps = sorted(self.points)
        at = np.array([[float(self.points[step].get(name, 0.0)) for name in names] for step in steps])
        starts, rows = [0], [at[0]]
        for k, step in enumerate(steps):
            following = steps[k + 1] if k + 1 < len(steps) else step + 1
            ramp = self.kind == "linear" and k + 1 < len(steps) and bool(np.any(at[k] != at[k + 1]))
            for inner in range(step, following) if ramp else (step,):
                share = (inner - step) / (following - step)
                target = at[k + 1] if ramp else at[k]
                starts.append(inner)
                rows.append(at[k] + share * (target - at[k]))
        first = 1 if starts[1] == 0 else 0
        return np.array(starts[first:], np.float64), np.array(rows[first:])


def _row(weights: Any, names: list[str], step: int) -> list[float]:
    """A function's weights of one step, in the order of the sources."""
    if not isinstance(weights, Mapping):
        raise ValueError(
            f"mixture: a function of the step must give weights by name, at step {step} it gave {weights!r}."
        )
    unknown = next((name for name in weights if name not in names), None)
    if unknown is not None:
        raise ValueError(
            f"mixture: at step {step} weights names {unknown!r}; the sources are {', '.join(names)}."
            f"{nearest(unknown, names)}"
        )
    try:
        return [float(weights.get(name, 0.0)) for name in names]
    except (TypeError, ValueError):
        raise ValueError(
            f"mixture: at step {step} the weights must be numbers, got {dict(weights)}."
        ) from None


def rows_of_function(
    function: Callable[[int], Weights], names: list[str], step: int, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights of ``count`` steps from ``step`` on, one row a step."""
    steps = np.arange(step, step + count)
    rows = [_row(function(at), names, at) for at in steps.tolist()]
    return steps.astype(np.float64), np.array(rows)
