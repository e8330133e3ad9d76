"""Evaluation: every sample exactly once on any number of ranks, and means that are those of one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from balancer.runtime import sum_over_ranks
from loaders.loader import DataLoader
from loaders.mixture import Mixture


def evaluation(dataset: Any, *, max_tokens: int, **arguments: Any) -> DataLoader[Any]:
    """A balanced `DataLoader` that gives out all samples, each once, in row order, in every iteration.

    Args:
        dataset: as for `DataLoader`; a `Mixture` must have ``stop="all_once"`` and no repeats.
        max_tokens: as for `DataLoader`.
        arguments: all others of `DataLoader` that leave no sample out.

    Raises:
        ValueError: an argument that drops, cuts, repeats or skips samples.
    """
    wrong = {
        "shuffle": (None, False),
        "drop_last": (None, False),
        "oversize": (None, "error", "split"),
        "on_error": (None, "raise"),
    }
    for name, allowed in wrong.items():
        if arguments.get(name) not in allowed:
            raise ValueError(
                f"{name}={arguments[name]!r} has no place in an evaluation, which needs every sample, whole "
                f"and once. Allowed: {', '.join(repr(value) for value in allowed if value is not None)}."
            )
    if isinstance(dataset, Mixture):
        repeats = [leaf.name for leaf in dataset.leaves() if leaf.repeat != 1.0]
        if dataset.stop != "all_once" or repeats:
            raise ValueError(
                f"an evaluation needs every sample once: the mixture has stop={dataset.stop!r} and repeats "
                f"{', '.join(repeats) or 'nothing'}. Pass stop='all_once' without repeat."
            )
    return DataLoader(dataset, max_tokens=max_tokens, **arguments)


@dataclass(slots=True)
class Mean:
    """A mean over tokens or samples of all ranks: sums in float64 on each rank, one message at the end."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, total: float, weight: float) -> None:
        """Add a micro-batch: a sum (of losses, of right answers) and what it is a sum over.

        A rank that shares sequences adds its own tokens. Dummies add 0 to both.
        """
        self.total += float(total)
        self.weight += float(weight)

    def over_ranks(self, group: Any = None) -> float:
        """The mean over all ranks; collective where there are several. NaN where nothing was counted."""
        total, weight = sum_over_ranks(self.total, group), sum_over_ranks(self.weight, group)
        return total / weight if weight else float("nan")
