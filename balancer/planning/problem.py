"""One step's planning problem, checked once and in integers from then on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer._kernels.order import first_at_most, longest_first
from balancer.planning.counts import check_count
from balancer.topology import Topology
from packing._rows import extremes
from packing.checks import check_choice, whole
from packing.table import SampleTable

Ints = NDArray[np.int64]

MAX_LENGTH = 2**31 - 1
SYNC_MODES = ("step", "micro_batch")

ALL_DEGREES = 1 << 15
"""Samples x degrees up to which costs are asked for at all degrees together: one call of 0.1 ms."""


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
    slots_multiple_of: int = 1
    """The number of slots is a multiple of this."""
    effort: int | None = None
    """Trials of the local search; ``None``: as many as pay."""
    min_length: Mapping[int, int] = field(default_factory=dict)
    """Shortest sample that each degree may take; 1 where nothing is said."""
    _cache: dict[Any, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.rows.size)

    @property
    def ranks(self) -> int:
        """Data ranks."""
        return self.topology.ranks

    @property
    def same_caps(self) -> bool:
        """Whether all ranks hold as many tokens."""
        if "same caps" not in self._cache:
            least, most = extremes(self.max_tokens)
            self._cache["same caps"] = bool(least == most)
        same: bool = self._cache["same caps"]
        return same

    def work_ns(self, cp_degree: int = 1) -> Ints:
        """[S] nanoseconds of each sample on every rank of a group, without the fixed cost."""
        if cp_degree not in self._cache:
            if len(self) * len(self.cp_degrees) <= ALL_DEGREES and cp_degree in self.cp_degrees:
                self.times_ns()
            else:
                self._cache[cp_degree] = self._checked(
                    (cp_degree,), self.cost.nanoseconds(self.num_tokens, cp_degree)[None]
                )[0]
        work: Ints = self._cache[cp_degree]
        return work

    def times_ns(self) -> Ints:
        """[D, S] the same at every allowed degree."""
        if "times" not in self._cache:
            if all(degree in self._cache for degree in self.cp_degrees):
                times = np.stack([self._cache[degree] for degree in self.cp_degrees])
            else:
                times = self._checked(self.cp_degrees, self._by_degree(self.cp_degrees, self.num_tokens))
                self._cache.update(zip(self.cp_degrees, times, strict=True))
            self._cache["times"] = times
        every: Ints = self._cache["times"]
        return every

    def with_degrees(self, cp_degrees: tuple[int, ...]) -> Problem:
        """The problem with other degrees; what is known of costs is kept."""
        known = {
            key: found
            for key, found in self._cache.items()
            if isinstance(key, (int, tuple)) or key == "same caps"
        }
        return replace(self, cp_degrees=cp_degrees, _cache=known)

    def _checked(self, cp_degrees: Sequence[int], given: Ints) -> Ints:
        """[D, S] ``given``. Raises ValueError for a cost model that pays for samples."""
        if given.size and extremes(given.reshape(-1))[0] < 0:
            j, worst = divmod(int(np.argmin(given)), given.shape[1])
            raise ValueError(
                f"costs must be at least 0, the model gives {given[j, worst]} ns for row {self.rows[worst]} "
                f"with {self.num_tokens[worst]} tokens at degree {cp_degrees[j]}."
            )
        return given

    def fixed_ns(self, cp_degree: int = 1) -> int:
        """Nanoseconds of every micro-batch of a group, whatever it holds."""
        key = "fixed", cp_degree
        if key not in self._cache:
            self._cache[key] = self.cost.fixed_nanoseconds(cp_degree)
        fixed: int = self._cache[key]
        return fixed

    def work_ns_of_longest(self, cp_degrees: Sequence[int], count: int) -> Ints:
        """[D, count] the same at several degrees, for the ``count`` longest samples."""
        if not cp_degrees:
            return np.empty((0, count), np.int64)
        if all(degree in self._cache for degree in cp_degrees):
            return np.stack([self._cache[degree][:count] for degree in cp_degrees])
        longest = self._by_degree(cp_degrees, self.num_tokens[:count])
        self._cache["longest"] = dict(zip(cp_degrees, longest, strict=True))
        return longest

    def work_ns_of(self, cp_degrees: Sequence[int], samples: Ints) -> Ints:
        """[D, samples] the same for some samples."""
        if all(degree in self._cache for degree in cp_degrees):
            return np.stack([self._cache[degree][samples] for degree in cp_degrees])
        longest = self._cache.get("longest", {})
        if len(cp_degrees) == 1 and cp_degrees[0] in longest and samples.size:
            known: Ints = longest[cp_degrees[0]]
            if int(samples.max()) < known.size:
                return known[samples][None]
        return self._by_degree(cp_degrees, self.num_tokens[samples])

    def cost_of(self, length: int) -> list[int]:
        """[D] nanoseconds of one length at every allowed degree."""
        costs: list[int] = self._by_degree(self.cp_degrees, np.array([length], np.int64))[:, 0].tolist()
        return costs

    def _by_degree(self, cp_degrees: Sequence[int], lengths: Ints) -> Ints:
        if hasattr(self.cost, "nanoseconds_by_degree"):
            together: Ints = self.cost.nanoseconds_by_degree(lengths, cp_degrees)
            return together
        return np.stack([self.cost.nanoseconds(lengths, d) for d in cp_degrees])

    def group_room(self, cp_degree: int) -> int:
        """Tokens that the roomiest group of ``cp_degree`` ranks holds."""
        if self.same_caps:
            return cp_degree * int(self.max_tokens[0])
        key = "room", cp_degree
        if key not in self._cache:
            members = self.topology.group_starts(cp_degree)[:, None] + np.arange(cp_degree)
            self._cache[key] = cp_degree * int(self.max_tokens[members].min(axis=1).max())
        room: int = self._cache[key]
        return room

    def first_that_fits(self, cp_degree: int) -> int:
        """First sample that some group of this degree can hold; all shorter ones fit as well."""
        pieces = 2 * cp_degree if cp_degree > 1 else 1
        return int(first_at_most(self.num_tokens, self.group_room(cp_degree) // pieces * pieces))

    def homeless(self) -> Ints:
        """Samples that no allowed degree can hold, whatever else runs."""
        fits = np.zeros(len(self), np.bool_)
        for degree, short in zip(self.cp_degrees, self.first_too_short().tolist(), strict=True):
            fits[self.first_that_fits(degree) : short] = True
        return np.flatnonzero(~fits)

    def first_too_short(self) -> Ints:
        """[D] first sample below each degree's least length; all shorter ones are too."""
        least = [self.min_length.get(d, 0) for d in self.cp_degrees]
        return np.array([first_at_most(self.num_tokens, n - 1) for n in least], np.int64)


def that_holds(problem: Problem, chain: tuple[int, ...]) -> Problem | None:
    """The problem on those degrees of ``chain`` whose widest holds every sample, if there are any.

    The widest degrees are left out where a small cap cannot hold even the alignment padding of their groups,
    or where every group has a member with little memory.
    """
    while chain:
        part = problem if chain == problem.cp_degrees else problem.with_degrees(chain)
        if part.first_that_fits(chain[-1]) == 0 and not (part.min_length and part.homeless().size):
            return part
        chain = chain[:-1]
    return None


def padded(num_tokens: Ints, cp_degree: int) -> Ints:
    """[S] tokens with alignment: a group of d > 1 ranks cuts each sample into 2 * d equal pieces (zigzag)."""
    if cp_degree == 1:
        return num_tokens
    pieces = 2 * cp_degree
    return -(-num_tokens // pieces) * pieces


_GIVE = "Give a list or an array of ints, one a sample, or a SampleTable."


def _shown(given: Any) -> str:
    """The beginning of what came."""
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:60]}..."


def check_lengths(table_or_lengths: SampleTable | ArrayLike) -> Ints:
    """[S] lengths. Raises ValueError that names the first bad row."""
    given = table_or_lengths.num_tokens if isinstance(table_or_lengths, SampleTable) else table_or_lengths
    try:
        lengths = np.asarray(given)
    except ValueError as error:  # rows of unlike lengths
        raise ValueError(f"lengths must be one row of whole numbers, got {_shown(given)}. {_GIVE}") from error
    if lengths.ndim == 1 and lengths.size == 0:
        return np.zeros(0, np.int64)
    if lengths.ndim != 1 or lengths.dtype.kind not in "iuf":
        raise ValueError(
            f"lengths must be one row of whole numbers, got shape {lengths.shape} of {lengths.dtype}: "
            f"{_shown(given)}. {_GIVE}"
        )
    if lengths.dtype.kind == "f":
        wrong = np.flatnonzero(~(np.isfinite(lengths) & (lengths == np.floor(lengths))))
        if wrong.size:
            raise ValueError(
                f"lengths must be whole numbers of tokens, row {wrong[0]} has {lengths[wrong[0]]}."
            )
    least, most = extremes(lengths) if lengths.dtype == np.int64 else (lengths.min(), lengths.max())
    if least < 1 or most > MAX_LENGTH:
        wrong = np.flatnonzero((lengths < 1) | (lengths > MAX_LENGTH))
        raise ValueError(
            f"{wrong.size} of {lengths.size} samples cannot be planned: lengths must be 1..{MAX_LENGTH} "
            f"tokens, row {wrong[0]} has {lengths[wrong[0]]}. Drop empty samples and split too long ones "
            "before planning."
        )
    return lengths.astype(np.int64, copy=False)


def make_problem(
    table_or_lengths: SampleTable | ArrayLike, *, check_fits: bool = True, **setting: Any
) -> Problem:
    """Check every argument of `balancer.plan_step` and sort the samples; ``setting`` as of `make_setting`."""
    return with_samples(make_setting(**setting), table_or_lengths, check_fits=check_fits)


def make_setting(
    *,
    topology: Topology,
    max_tokens: int | Sequence[int] | Ints,
    cost: Cost,
    cp_degrees: Sequence[int],
    sync: str,
    micro_batches: int | None,
    seed: int,
    min_length: Mapping[int, int] | None = None,
    slots_multiple_of: int = 1,
    effort: int | None = None,
) -> Problem:
    """A problem without samples: what all steps of a run share, checked once. `with_samples` adds a step's.

    Checks take 15 us: more than all else of a plan of 8 samples on one rank.
    """
    check_kinds(topology, cost)
    check_choice("sync", sync, SYNC_MODES)
    if micro_batches is not None:
        micro_batches = check_count("micro_batches", micro_batches, or_none=True)
    slots_multiple_of = check_count("slots_multiple_of", slots_multiple_of)
    if effort is not None:
        effort = check_count("effort", effort, least=0, or_none=True)
    if micro_batches is not None and micro_batches % slots_multiple_of:
        raise ValueError(
            f"micro_batches must be a multiple of slots_multiple_of, got {micro_batches} and "
            f"{slots_multiple_of}."
        )
    capacity = _check_capacity(max_tokens, topology.ranks)
    degrees = _check_degrees(cp_degrees, topology.ranks)
    if hasattr(cost, "for_topology"):
        cost = cost.for_topology(topology)
    none = np.zeros(0, np.int64)
    return Problem(
        rows=none,
        num_tokens=none,
        cost=cost,
        topology=topology,
        max_tokens=capacity,
        cp_degrees=degrees,
        sync=sync,
        micro_batches=micro_batches,
        seed=whole("seed", seed),
        slots_multiple_of=slots_multiple_of,
        effort=effort,
        min_length=_check_min_length({} if min_length is None else min_length, degrees),
    )


def with_samples(
    setting: Problem, table_or_lengths: SampleTable | ArrayLike, *, check_fits: bool = True
) -> Problem:
    """The problem of a step's samples, sorted longest first; ``setting`` is from `make_setting`.

    Raises:
        ValueError: samples that are no lengths, or that no allowed degree can hold.
    """
    lengths = check_lengths(table_or_lengths)
    longest = int(extremes(lengths)[1]) if lengths.size else 0
    order = longest_first(lengths, max(longest.bit_length(), 1))
    problem = Problem(
        rows=order,
        num_tokens=lengths[order],
        cost=setting.cost,
        topology=setting.topology,
        max_tokens=setting.max_tokens,
        cp_degrees=setting.cp_degrees,
        sync=setting.sync,
        micro_batches=setting.micro_batches,
        seed=setting.seed,
        slots_multiple_of=setting.slots_multiple_of,
        effort=setting.effort,
        min_length=setting.min_length,
        _cache=dict(setting._cache),
    )
    if check_fits:
        _check_fits(problem)
    return problem


def check_kinds(topology: Any, cost: Any) -> None:
    """Refuse a number of ranks instead of a topology, or a name instead of a cost model. Raises TypeError."""
    if not isinstance(topology, Topology):
        raise TypeError(f"topology must be a balancer.Topology, such as Topology(ranks=8), got {topology!r}.")
    if not hasattr(cost, "fixed_nanoseconds"):
        raise TypeError(
            "cost must be a cost model: CostModel.generic(), CostModel.preset(name), "
            f"CostModel.load(path), ...; got {cost!r}."
        )


def _is_whole(value: Any, least: int) -> bool:
    try:
        return check_count("", value, least=least) >= least
    except ValueError:
        return False


def _check_min_length(min_length: Mapping[int, int], degrees: tuple[int, ...]) -> dict[int, int]:
    known = isinstance(min_length, Mapping) and all(degree in degrees for degree in min_length)
    if not known or not all(_is_whole(tokens, 0) for tokens in min_length.values()):
        raise ValueError(
            f"min_length must map degrees of cp_degrees {degrees} to whole numbers of tokens, such as "
            f"{{{degrees[-1]}: 4096}}, got {min_length!r}."
        )
    # Pieces get shorter with the degree, and plans rest on that: wider ones take nothing shorter.
    rising = itertools.accumulate((int(min_length.get(degree, 0)) for degree in degrees), max)
    return {degree: least for degree, least in zip(degrees, rising, strict=True) if least > 0}


def _check_capacity(max_tokens: int | Sequence[int] | Ints, ranks: int) -> Ints:
    if type(max_tokens) is int and 1 <= max_tokens < 2**63:  # a fifth of the time of what follows
        return np.full(ranks, max_tokens, np.int64)
    capacity = np.asarray(max_tokens)
    if capacity.dtype.kind not in "iu" or capacity.shape not in ((), (ranks,)) or np.any(capacity < 1):
        raise ValueError(
            f"max_tokens must be a whole number of at least 1, or one for each of the {ranks} ranks, "
            f"got {max_tokens!r}."
        )
    return np.full(ranks, capacity, np.int64)


def _check_degrees(cp_degrees: Sequence[int], ranks: int) -> tuple[int, ...]:
    if not isinstance(cp_degrees, Iterable) or isinstance(cp_degrees, (str, bytes)):
        raise TypeError(f"cp_degrees must hold the allowed degrees, such as (1, 2, 4), got {cp_degrees!r}.")
    given = tuple(cp_degrees)
    if not given or not all(_is_whole(degree, 1) for degree in given):
        raise ValueError(
            f"cp_degrees must hold whole numbers of at least 1, such as (1, 2, 4), got {given!r}."
        )
    degrees = tuple(sorted({int(degree) for degree in given}))
    if degrees[-1] > ranks:
        raise ValueError(
            f"cp_degrees must not exceed the number of ranks: degree {degrees[-1]} needs {degrees[-1]} "
            f"ranks, the topology has {ranks}. Leave out degrees above {ranks}."
        )
    return degrees


def _check_fits(problem: Problem) -> None:
    if not problem.min_length and problem.first_that_fits(problem.cp_degrees[-1]) == 0:
        return
    homeless = problem.homeless()
    if homeless.size == 0:
        return
    sample = int(homeless[0])
    row, length = problem.rows[sample], problem.num_tokens[sample]
    degree = problem.cp_degrees[-1]
    reason = f"a micro-batch on {degree} ranks holds {problem.group_room(degree)} tokens"
    if problem.min_length:
        reason += f" and min_length is {dict(problem.min_length)}"
    raise ValueError(
        f"{homeless.size} of {len(problem)} samples fit no allowed degree: {reason}, row {row} has {length}. "
        "Raise max_tokens, allow other cp_degrees, or drop or split such samples before planning."
    )
