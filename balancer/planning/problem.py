"""One step's planning problem, checked once and in integers from then on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer._kernels.order import longest_first
from balancer.topology import Topology
from packing.table import SampleTable

Ints = NDArray[np.int64]

MAX_LENGTH = 2**31 - 1
SYNC_MODES = ("step", "micro_batch")


class Cost(Protocol):
    """What the planner asks of a cost model; `balancer.CostModel` has it."""

    def nanoseconds(self, lengths: ArrayLike, cp_degree: int = 1) -> Ints:
        """[S] nanoseconds of each sample on every rank of a group, without the fixed cost."""
        ...

    def fixed_nanoseconds(self, cp_degree: int = 1) -> int:
        """Nanoseconds of every micro-batch of a group, whatever it holds."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Problem:
    """Lengths, cost and cluster of one step. Samples are numbered by falling length, ties by row.

    Axes: S = samples, R = ranks.
    """

    rows: Ints
    """[S] row in the step's table."""
    num_tokens: Ints
    """[S] tokens, falling."""
    cost: Cost
    topology: Topology
    max_tokens: Ints
    """[R] tokens that each rank can hold in one micro-batch."""
    cp_degrees: tuple[int, ...]
    """Allowed degrees, rising."""
    sync: str
    micro_batches: int | None
    """Slots every rank runs; ``None``: free."""
    seed: int
    min_length: Mapping[int, int] = field(default_factory=dict)
    """Shortest sample that each degree may take; 1 where nothing is said."""
    _cache: dict[Any, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.rows.size)

    @property
    def ranks(self) -> int:
        """Data ranks."""
        return self.topology.ranks

    def work_ns(self, cp_degree: int = 1) -> Ints:
        """[S] nanoseconds of each sample on every rank of a group, without the fixed cost."""
        if cp_degree not in self._cache:
            self._cache[cp_degree] = self._evaluate(cp_degree, self.num_tokens)
        work: Ints = self._cache[cp_degree]
        return work

    def fixed_ns(self, cp_degree: int = 1) -> int:
        """Nanoseconds of every micro-batch of a group, whatever it holds."""
        return self.cost.fixed_nanoseconds(cp_degree)

    def work_ns_of_longest(self, cp_degree: int, count: int) -> Ints:
        """[count] the same, for the ``count`` longest samples."""
        if cp_degree in self._cache:
            return self.work_ns(cp_degree)[:count]
        return self._evaluate(cp_degree, self.num_tokens[:count])

    def group_room(self, cp_degree: int) -> int:
        """Tokens that the roomiest group of ``cp_degree`` ranks there could be holds."""
        return cp_degree * int(np.sort(self.max_tokens)[-cp_degree])

    def first_that_fits(self, cp_degree: int) -> int:
        """First sample that some group of this degree can hold; all shorter ones fit as well."""
        need = padded(self.num_tokens, cp_degree)
        return int(np.searchsorted(-need, -self.group_room(cp_degree)))

    def first_too_short(self) -> Ints:
        """[D] first sample below each degree's least length; all shorter ones are too."""
        least = [self.min_length.get(d, 1) for d in self.cp_degrees]
        return np.searchsorted(-self.num_tokens, -np.array(least, np.int64), side="right")

    def _evaluate(self, cp_degree: int, lengths: Ints) -> Ints:
        # Equal lengths are neighbours: one evaluation each.
        if lengths.size == 0:
            return np.zeros(0, np.int64)
        first = np.flatnonzero(np.diff(lengths, prepend=lengths[0] + 1))
        work = self.cost.nanoseconds(lengths[first], cp_degree)
        return np.repeat(work, np.diff(first, append=lengths.size))


def padded(num_tokens: Ints, cp_degree: int) -> Ints:
    """[S] tokens with alignment: a group of d > 1 ranks cuts each sample into 2 * d equal pieces (zigzag)."""
    if cp_degree == 1:
        return num_tokens
    pieces = 2 * cp_degree
    return -(-num_tokens // pieces) * pieces


def check_lengths(table_or_lengths: SampleTable | ArrayLike) -> Ints:
    """[S] lengths. Raises ValueError that names the first bad row."""
    given = table_or_lengths.num_tokens if isinstance(table_or_lengths, SampleTable) else table_or_lengths
    lengths = np.asarray(given)
    if lengths.size == 0:
        return np.zeros(0, np.int64)
    if lengths.ndim != 1 or lengths.dtype.kind not in "iuf":
        raise ValueError(
            f"lengths must be one row of whole numbers, got shape {lengths.shape} of {lengths.dtype}."
        )
    if lengths.dtype.kind == "f":
        wrong = np.flatnonzero(~(np.isfinite(lengths) & (lengths == np.floor(lengths))))
        if wrong.size:
            raise ValueError(
                f"lengths must be whole numbers of tokens, row {wrong[0]} has {lengths[wrong[0]]!r}."
            )
    if lengths.min() < 1 or lengths.max() > MAX_LENGTH:
        wrong = np.flatnonzero((lengths < 1) | (lengths > MAX_LENGTH))
        raise ValueError(
            f"{wrong.size} of {lengths.size} samples cannot be planned: lengths must be 1..{MAX_LENGTH} "
            f"tokens, row {wrong[0]} has {lengths[wrong[0]]}. Drop empty samples and split too long ones "
            "before planning."
        )
    return lengths.astype(np.int64, copy=False)


def make_problem(
    table_or_lengths: SampleTable | ArrayLike,
    *,
    topology: Topology,
    max_tokens: int | Sequence[int] | Ints,
    cost: Cost,
    cp_degrees: Sequence[int],
    sync: str,
    micro_batches: int | None,
    seed: int,
) -> Problem:
    """Check every argument of `balancer.plan_step` and sort the samples, longest first."""
    lengths = check_lengths(table_or_lengths)
    if sync not in SYNC_MODES:
        raise ValueError(f'sync must be "step" or "micro_batch", got {sync!r}.')
    if micro_batches is not None and (int(micro_batches) != micro_batches or micro_batches < 1):
        raise ValueError(
            f"micro_batches must be a whole number of at least 1 or None, got {micro_batches!r}."
        )
    capacity = _check_capacity(max_tokens, topology.ranks)
    degrees = _check_degrees(cp_degrees, topology.ranks)
    if hasattr(cost, "for_topology"):
        cost = cost.for_topology(topology)
    order = longest_first(lengths, max(int(lengths.max(initial=0)).bit_length(), 1))
    problem = Problem(
        rows=order,
        num_tokens=lengths[order],
        cost=cost,
        topology=topology,
        max_tokens=capacity,
        cp_degrees=degrees,
        sync=sync,
        micro_batches=None if micro_batches is None else int(micro_batches),
        seed=int(seed),
    )
    _check_fits(problem)
    return problem


def _check_capacity(max_tokens: int | Sequence[int] | Ints, ranks: int) -> Ints:
    capacity = np.asarray(max_tokens)
    if capacity.dtype.kind not in "iu" or capacity.shape not in ((), (ranks,)) or np.any(capacity < 1):
        raise ValueError(
            f"max_tokens must be a whole number of at least 1, or one for each of the {ranks} ranks, "
            f"got {max_tokens!r}."
        )
    return np.broadcast_to(capacity, (ranks,)).astype(np.int64)


def _check_degrees(cp_degrees: Sequence[int], ranks: int) -> tuple[int, ...]:
    degrees = tuple(sorted({int(degree) for degree in cp_degrees}))
    if not degrees or degrees[0] < 1 or any(int(degree) != degree for degree in cp_degrees):
        raise ValueError(f"cp_degrees must hold whole numbers of at least 1, got {tuple(cp_degrees)!r}.")
    if degrees[-1] > ranks:
        raise ValueError(
            f"cp_degrees must not exceed the number of ranks: degree {degrees[-1]} needs {degrees[-1]} "
            f"ranks, the topology has {ranks}. Leave out degrees above {ranks}."
        )
    return degrees


def _check_fits(problem: Problem) -> None:
    if len(problem) == 0:
        return
    degree = problem.cp_degrees[-1]
    room = degree * int(problem.max_tokens.max())
    too_long = np.flatnonzero(padded(problem.num_tokens, degree) > room)
    if too_long.size:
        raise ValueError(
            f"{too_long.size} of {len(problem)} samples fit no allowed degree: a micro-batch on {degree} "
            f"ranks holds {room} tokens, row {problem.rows[0]} has {problem.num_tokens[0]}. Raise max_tokens, "
            "allow larger cp_degrees, or drop or split long samples before planning."
        )
