"""Several sources in given shares, in an order that is a function of the position."""

from __future__ import annotations

import logging
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.arguments import is_count
from loaders.catalog import Catalog, open_catalog
from loaders.order.mixed import MixtureOrder
from loaders.order.permutation import Permutation
from loaders.order.quota import Quota, until_all_given
from loaders.order.schedule import Schedule, Weights, rows_of_function
from loaders.sources.base import Source, samples_of
from packing.checks import check_choice, nearest

logger = logging.getLogger(__name__)

UNITS = ("tokens", "samples")
STOPS = ("all_exhausted", "first_exhausted", "all_once")
STEPS_AT_ONCE = 1024
"""Steps whose weights are asked of a user's function at a time."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Leaf:
    """A source of a mixture or of one of its groups."""

    name: str
    """``group/name`` inside a group."""
    source: Source
    repeat: float


class Mixture:
    """Sources in given shares.

    Args:
        sources: by name; each a `Source`, anything `open_source` takes, or another `Mixture` (a group).
        weights: share of each source, normalised; a `Schedule`, or a function of the step that gives them; or
            ``None``: in proportion to what the sources hold.
        by: what the weights are shares of: ``"tokens"`` or ``"samples"``.
        stop: when an epoch ends. ``"all_exhausted"``: when every source has been seen once, shorter ones
            several times; ``"first_exhausted"``: when the first has; ``"all_once"``: every sample exactly
            once, the others keeping their proportions when a source runs out; or a number of samples.
        repeat: times that a source's rows count as new before it is exhausted, by name; 0.5 is half of it.
        temperature: weights become ``w ** (1 / temperature)``; above 1 small sources gain.
        seed: of the order, unless the loader is given one.

    As a map-style data set, its samples are those of one epoch, in mixed order and not shuffled.

    Raises:
        ValueError: names, weights or options that make no order; says which.
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
        weights: Weights | Schedule | Callable[[int], Weights] | None = None,
        *,
        by: str = "tokens",
        stop: str | int = "all_exhausted",
        repeat: Mapping[str, float] | None = None,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> None:
        for name, value in (("sources", sources), ("repeat", repeat or {})):
            if not isinstance(value, Mapping):
                raise TypeError(f"{name} of a Mixture must be a dict by the sources' names, got {value!r}.")
        if not sources:
            raise ValueError("a Mixture needs at least one source.")
        check_choice("by", by, UNITS)
        if stop == "all_exhausted_without_replacement":  # the name that `datasets` has for it
            stop = "all_once"
        if isinstance(stop, str) and stop not in STOPS:
            raise ValueError(
                f"stop must be one of {', '.join(STOPS)} or a number of samples, got {stop!r}."
                f"{nearest(stop, STOPS)}"
            )
        if not isinstance(stop, str) and not (is_count(stop) and stop < 2**62):
            raise ValueError(
                f"stop as a number of samples must be a whole number of at least 1, got {stop!r}."
            )
        if not (_is_number(temperature) and 0 < temperature < math.inf):
            raise ValueError(f"temperature must be a finite number above 0, got {temperature!r}.")
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise ValueError(f"seed must be a whole number, got {seed!r}.")
        self.sources = {name: _opened(value) for name, value in sources.items()}
        self.weights = weights
        self.by = by
        self.stop = stop
        self.repeat = dict(repeat or {})
        self.temperature = temperature
        self.seed = int(seed)
        self._view: _View | None = None
        _check_names("repeat", self.repeat, self.sources)
        for name, times in self.repeat.items():
            if not (_is_number(times) and 0 <= times < math.inf):
                raise ValueError(f"repeat must be a finite number of at least 0, {name!r} has {times!r}.")
        if weights is not None and not callable(weights):
            if not isinstance(weights, Mapping | Schedule):
                raise TypeError(
                    "weights must be a dict by the sources' names, a Schedule, a function of the step or "
                    f"None, got {weights!r}."
                )
            _check_weights(weights, self.sources)
        if self.scheduled and stop == "all_once":
            raise ValueError(
                'stop="all_once" leaves sources out as they run out, which a schedule cannot foresee. Use '
                '"all_exhausted", "first_exhausted" or a number of samples with it.'
            )
        for name, value in self.sources.items():
            if isinstance(value, Mixture) and value.scheduled:
                raise ValueError(f"group {name!r} has scheduled weights; only the outermost mixture may.")

    @property
    def scheduled(self) -> bool:
        """Whether the weights change with the step."""
        return isinstance(self.weights, Schedule) or callable(self.weights)

    @classmethod
    def from_yaml(cls, path: str) -> Mixture:
        """A mixture from a file.

        ::

            by: tokens
            stop: all_exhausted
            sources:
              - {name: web, path: "data/web/*.parquet", weight: 0.7}
              - {name: code, path: data/code.jsonl, weight: 0.3, repeat: 2, column: ids}

        A source may have ``sources`` of its own instead of a path; further keys go to `open_source`.
        """
        from loaders.mixture_file import read_mixture

        return read_mixture(path)

    def leaves(self, prefix: str = "", repeat: float = 1.0) -> list[Leaf]:
        """All sources, those of groups included, in order."""
        found: list[Leaf] = []
        for name, value in self.sources.items():
            times = repeat * self.repeat.get(name, 1.0)
            if isinstance(value, Mixture):
                found += value.leaves(f"{prefix}{name}/", times)
            else:
                found.append(Leaf(name=f"{prefix}{name}", source=value, repeat=times))
        return found

    def rates(self, catalogs: Sequence[Catalog], weights: Weights | None) -> NDArray[np.float64]:
        """[n] Samples of each leaf per sample of the mixture, for these weights of its own sources.

        A weight by tokens is divided by the source's mean length. Sources without usable rows get 0.
        """
        own = np.zeros(len(self.sources))
        inner: list[NDArray[np.float64]] = []
        at = 0
        for k, (name, value) in enumerate(self.sources.items()):
            size = len(value.leaves()) if isinstance(value, Mixture) else 1
            mine = catalogs[at : at + size]
            at += size
            within = np.ones(1)
            if isinstance(value, Mixture):
                within = value.rates(mine, None if callable(value.weights) else value.weights)  # type: ignore[arg-type]
            rows = np.array([len(catalog) for catalog in mine], np.float64)
            means = np.array([catalog.mean_tokens for catalog in mine])
            if not rows.any():
                inner.append(np.zeros(size))
                continue
            if weights is None:
                amount = float((rows * means).sum() if self.by == "tokens" else rows.sum())
            else:
                amount = float(weights.get(name, 0.0))
            own[k] = amount ** (1 / self.temperature)
            if self.by == "tokens":
                own[k] /= float((within * means).sum())
            inner.append(within)
        rates = np.concatenate([share * within for share, within in zip(own, inner, strict=True)])
        total = float(rates.sum())
        return rates / total if total > 0 else rates

    def order(
        self,
        catalogs: Sequence[Catalog],
        *,
        shuffle: bool,
        seed: int,
        samples_per_step: int | None,
        shuffles: Sequence[Permutation | None] = (),
    ) -> MixtureOrder:
        """The order over the leaves' usable rows.

        Args:
            catalogs: of the leaves.
            shuffle: permute each source anew each time it is gone through.
            seed: of the permutations.
            samples_per_step: what steps of a schedule are in samples; ``None``: unknown.
            shuffles: those of leaves that are not shuffled over all their rows.
        """
        leaves = self.leaves()
        rows = np.array([len(catalog) for catalog in catalogs], np.int64)
        for leaf, count in zip(leaves, rows.tolist(), strict=True):
            if not count:
                logger.warning("mixture: source %r has no usable rows and is left out", leaf.name)
        sizes = np.array(
            [round(leaf.repeat * count) for leaf, count in zip(leaves, rows.tolist(), strict=True)], np.int64
        )
        quota = self._quota(catalogs, sizes, samples_per_step)
        size = self._epoch_size(quota, sizes)
        return MixtureOrder(
            quota=quota,
            rows=rows,
            names=[leaf.name for leaf in leaves],
            epoch_size=size,
            restarts=not self.scheduled,
            shuffle=shuffle,
            seed=seed,
            shuffles=shuffles,
        )

    def describe(self, samples_per_step: int | None) -> dict[str, Any]:
        """Plain values that fix the order, for a state's identity."""
        weights: Any = self.weights
        if isinstance(self.weights, Schedule):
            weights = self.weights.describe()
        elif callable(self.weights):
            weights = f"function {getattr(self.weights, '__qualname__', type(self.weights).__name__)}"
        return {
            "weights": dict(weights) if isinstance(weights, Mapping) else weights,
            "by": self.by,
            "stop": self.stop,
            "repeat": self.repeat,
            "temperature": self.temperature,
            "samples per step": samples_per_step if self.scheduled else None,
            "groups": {
                name: value.describe(None)
                for name, value in self.sources.items()
                if isinstance(value, Mixture)
            },
        }

    def _quota(
        self, catalogs: Sequence[Catalog], sizes: NDArray[np.int64], samples_per_step: int | None
    ) -> Quota:
        weights = self.weights
        if isinstance(weights, Schedule):
            per_step = _known(samples_per_step)
            names = list(self.sources)
            starts, rows = weights.rows(names)
            return Quota(starts * per_step, self._rate_rows(catalogs, names, rows, starts))
        if callable(weights):
            return self._function_quota(catalogs, weights, _known(samples_per_step))
        rates = self.rates(catalogs, weights)
        if not rates.any():
            raise ValueError(f"mixture: no source with a weight above 0 has usable rows; weights {weights}.")
        if self.stop == "all_once":
            return until_all_given(rates, np.where(rates > 0, sizes, 0))
        return Quota(np.zeros(1), rates[None])

    def _function_quota(
        self, catalogs: Sequence[Catalog], function: Callable[[int], Weights], per_step: int
    ) -> Quota:
        names = list(self.sources)

        def rows_from(step: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            steps, rows = rows_of_function(function, names, step, STEPS_AT_ONCE)
            return steps * per_step, self._rate_rows(catalogs, names, rows, steps)

        return Quota(*rows_from(0), more=lambda start: rows_from(round(start / per_step) + 1))

    def _rate_rows(
        self,
        catalogs: Sequence[Catalog],
        names: Sequence[str],
        rows: NDArray[np.float64],
        steps: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        found = np.array([self.rates(catalogs, dict(zip(names, row, strict=True))) for row in rows.tolist()])
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1) | (rows < 0).any(axis=1) | ~found.any(axis=1))
        if bad.size:
            got = dict(zip(names, rows[bad[0]].tolist(), strict=True))
            raise ValueError(
                f"mixture: at step {int(steps[bad[0]])} the weights must be finite, not negative, and above "
                f"0 for a source with usable rows, got {got}."
            )
        return found

    def _epoch_size(self, quota: Quota, sizes: NDArray[np.int64]) -> int:
        if not isinstance(self.stop, str):
            return int(self.stop)
        if self.stop == "all_once":
            return quota.total
        live = (quota.rates > 0).any(axis=0) & (sizes > 0)
        return quota.first_reaching(np.where(live, sizes, 0), all_of=self.stop == "all_exhausted")

    # ------------------------------------------------------------ as a map-style data set

    def __len__(self) -> int:
        return len(self._as_view())

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Samples at positions of the epoch; torch asks for a batch at once."""
        return self._as_view().samples(np.asarray(indices, np.int64))

    def _as_view(self) -> _View:
        if self._view is None:
            leaves = self.leaves()
            catalogs = [open_catalog(leaf.source, capacity=1 << 62, oversize="error") for leaf in leaves]
            order = self.order(catalogs, shuffle=False, seed=self.seed, samples_per_step=None)
            self._view = _View(catalogs=catalogs, order=order)
        return self._view


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _View:
    """A mixture's first epoch, sample by sample."""

    catalogs: Sequence[Catalog]
    order: MixtureOrder

    def __len__(self) -> int:
        return self.order.size(0)

    def samples(self, positions: NDArray[np.int64]) -> list[dict[str, Any]]:
        size = len(self)
        if positions.size and not -size <= positions.min() <= positions.max() < size:
            raise IndexError(f"index out of range for a mixture of {size} samples")
        source, place = self.order.locate(0, positions % size)
        found: list[dict[str, Any]] = [{} for _ in range(positions.size)]
        for number in np.unique(source).tolist():
            mine = np.flatnonzero(source == number)
            catalog = self.catalogs[number]
            rows = catalog.source.read(catalog.rows(place[mine]))
            for at, sample in zip(mine.tolist(), samples_of(rows), strict=True):
                found[at] = sample
        return found


def _opened(value: Any) -> Any:
    if isinstance(value, (Source, Mixture)):
        return value
    from loaders.sources import open_source

    return open_source(value)


def _check_weights(weights: Weights | Schedule, sources: Mapping[str, Any]) -> None:
    points = weights.points.values() if isinstance(weights, Schedule) else [weights]
    for point in points:
        _check_names("weights", point, sources)
        bad = {name: w for name, w in point.items() if not (_is_number(w) and 0 <= w < math.inf)}
        if bad or not any(point.values()):
            raise ValueError(
                f"weights must be finite and not negative, and one must be above 0, got {dict(point)}."
            )
    named = {name for point in points for name in point}
    missing = [name for name in sources if name not in named]
    if missing:
        raise ValueError(f"weights leave out {missing}: give every source a weight; 0 leaves it out.")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _check_names(what: str, given: Mapping[str, Any], sources: Mapping[str, Any]) -> None:
    for name in given:
        if name not in sources:
            raise ValueError(
                f"{what} names {name!r}; the sources are {', '.join(sources)}.{nearest(name, sources)}"
            )


def _known(samples_per_step: int | None) -> int:
    if samples_per_step is None:
        raise ValueError(
            "a schedule of weights by step needs steps of a known number of samples. Use max_tokens with "
            "batch_size or global_batch_size; steps of so many tokens, or torch's own mode, have none."
        )
    return samples_per_step
