"""The cost model: lengths and a CP degree in, seconds out."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.costs.attention import attended_pairs, parse_attention
from balancer.costs.checks import check_coefficient, check_count, check_degree, check_lengths
from balancer.costs.communication import Communication
from balancer.costs.measured import MeasuredTable
from balancer.topology import Topology

BEYOND = ("warn", "raise", "allow")

MAX_NANOSECONDS = 2**61
"""73 years. A sum of several such costs still fits 64 bits."""


class CostRangeWarning(UserWarning):
    """A cost was asked for outside of what was measured."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """How well coefficients describe the measurements that they were fitted to."""

    rows: int
    """Distinct micro-batches, after taking the minimum of repeats."""
    measurements: int
    """Rows that came in."""
    shortest: int
    """Shortest sample measured, in tokens."""
    longest: int
    """Longest sample measured, in tokens."""
    degrees: tuple[int, ...]
    """CP degrees measured."""
    median_error: float
    """Median of \\|predicted / measured - 1\\| over the rows."""
    max_error: float
    """The largest of them."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Predicted seconds of forward + backward.

    A micro-batch on a CP group of d ranks takes ``fixed_s(d)`` plus, for each of its samples,
    ``(linear * n + quadratic * pairs(n)) / d + comm(n, d)``. Nothing but ``+ - * /``, maximum and floor on
    float64 is used, so equal inputs give equal bits on every platform.

    Args:
        linear: seconds per token.
        quadratic: seconds per attended pair; with a stack of layers, per pair of one layer.
        fixed: seconds per micro-batch.
        attention: which pairs are attended, see `balancer.costs.attention`.
        communication: exchange inside CP groups; ``None``: free.
        table: measured seconds that take the place of linear, quadratic and communication.
        max_length: longest sample that was measured; ``None``: the formula holds for any length.
        degrees: CP degrees that were measured; empty: the formula holds for any degree.
        beyond: ``"warn"`` (once a process), ``"raise"`` or ``"allow"`` what was not measured.
        source: where the coefficients come from, for messages and reports.
        report: how well a fitted model describes its measurements.

    Raises:
        ValueError: coefficients that are no numbers, negative, not finite or all zero, an unknown pattern,
            degrees or a length that are not whole numbers of at least 1.
        TypeError: a pattern, communication, table or degrees of another kind.
    """

    linear: float = 0.0
    quadratic: float = 0.0
    fixed: float = 0.0
    attention: str = "causal"
    communication: Communication | None = None
    table: MeasuredTable | None = None
    max_length: int | None = None
    degrees: tuple[int, ...] = ()
    beyond: str = "warn"
    source: str = "given"
    report: FitReport | None = None

    def __post_init__(self) -> None:
        self._check_kinds()
        for name in ("linear", "quadratic", "fixed"):
            object.__setattr__(self, name, check_coefficient(f"CostModel.{name}", getattr(self, name)))
        if self.table is None and self.linear == self.quadratic == self.fixed == 0:
            raise ValueError(
                "CostModel: linear, quadratic and fixed are all 0, so no plan would cost anything."
            )
        if self.table is not None and (self.linear or self.quadratic or self.communication):
            raise ValueError(
                "CostModel: a measured table takes the place of linear, quadratic and communication."
            )
        if self.beyond not in BEYOND:
            raise ValueError(f"CostModel.beyond must be one of {BEYOND}, got {self.beyond!r}.")

    def _check_kinds(self) -> None:
        parse_attention(self.attention)
        if not isinstance(self.communication, Communication | None):
            raise TypeError(
                "CostModel.communication must be a balancer.cost.Communication or None, got "
                f"{self.communication!r}. Take another model's with cost.with_communication(model)."
            )
        if not isinstance(self.table, MeasuredTable | None):
            raise TypeError(
                f"CostModel.table must be a measured table or None, got {self.table!r}. "
                "Make the model with CostModel.from_table(lengths, seconds)."
            )
        if self.max_length is not None:
            object.__setattr__(self, "max_length", check_count("CostModel.max_length", self.max_length))
        if isinstance(self.degrees, str) or not isinstance(self.degrees, Iterable):
            raise TypeError(
                f"CostModel.degrees must hold the measured degrees, such as (1, 2), got {self.degrees!r}."
            )
        degrees = tuple(check_count("each of CostModel.degrees", degree) for degree in self.degrees)
        object.__setattr__(self, "degrees", degrees)

    @classmethod
    def generic(cls) -> CostModel:
        """A generic decoder: linear and quadratic work are equal at 32,768 tokens.

        For use where nothing is known of the model. Published crossings lie between 8K (one layer, forward,
        ByteScale) and 128K tokens (WLB-LLM's heuristic for TP 8); FlexSP's end-to-end fit of a 7B model on
        A100s crosses at 36K. The scale, 0.1 ms a token, is arbitrary and drops out of every comparison.

        Sharing a sequence is not free: a ring moves keys and values at 3 % of a token's linear time inside a
        node, ten times that between nodes, which is what `from_config` finds for a 7B model on A100s. Long
        sequences hide it behind attention, short ones pay. There is no fixed cost.
        """
        linear = 1e-4
        link = Communication(bytes_per_token=0.03 * linear, intra_node=1.0, inter_node=0.1, overlap=1.0)
        quadratic = linear * 32768 / (32768 * 32769 // 2)
        return cls(linear, quadratic, communication=link, source="generic decoder")

    @classmethod
    def preset(cls, name: str) -> CostModel:
        """Published coefficients, see `balancer.costs.presets`. Raises ValueError that lists the names."""
        from balancer.costs.presets import preset

        return preset(name)

    @classmethod
    def from_config(cls, config: Any, gpu: Any = "h100", **options: Any) -> CostModel:
        """Coefficients from a model's shape and a GPU, see `balancer.costs.config.cost_from_config`."""
        from balancer.costs.config import cost_from_config

        return cost_from_config(config, gpu, **options)

    @classmethod
    def from_table(
        cls,
        lengths: ArrayLike,
        seconds: ArrayLike | Mapping[int, ArrayLike],
        *,
        fixed: float = 0.0,
        smooth: bool = False,
        beyond: str = "warn",
        source: str = "measured table",
    ) -> CostModel:
        """Measured seconds of one sample by length (and degree), see `MeasuredTable.from_rows`."""
        table = MeasuredTable.from_rows(lengths, seconds, smooth=smooth)
        return cls(
            fixed=fixed,
            table=table,
            max_length=int(table.lengths[-1]),
            beyond=beyond,
            source=source,
        )

    @classmethod
    def fit(cls, measurements: Iterable[tuple[Any, Any, Any]], **options: Any) -> CostModel:
        """Coefficients from measured micro-batches, see `balancer.costs.fit.fit_cost`."""
        from balancer.costs.fit import fit_cost

        return fit_cost(measurements, **options)

    @classmethod
    def load(cls, path: str | Path) -> CostModel:
        """The model that `save` or ``evenload calibrate`` wrote. Raises ValueError that names the file."""
        from balancer.costs.files import load_cost

        return load_cost(path)

    def save(self, path: str | Path) -> None:
        """Write the model as JSON."""
        from balancer.costs.files import save_cost

        save_cost(self, path)

    def __call__(self, lengths: ArrayLike, cp_degree: int = 1) -> NDArray[np.float64]:
        """[S] seconds of each sample on every rank of a group of ``cp_degree``, without the fixed cost.

        Raises:
            ValueError: lengths outside ``0..2**31 - 1`` or not whole, or a degree below 1.
        """
        num_tokens, degree = check_lengths(lengths), check_degree(cp_degree)
        self._check_range(num_tokens, (degree,))
        if self.table is not None:
            return self.table(num_tokens, degree)
        attention_s = self.quadratic * attended_pairs(num_tokens, self.attention)
        seconds = (self.linear * num_tokens + attention_s) / degree
        if self.communication is not None and degree > 1:
            seconds = seconds + self.communication.exposed_s(num_tokens, attention_s / degree, degree)
        return seconds

    def _check_range(self, num_tokens: NDArray[np.int64], degrees: Sequence[int]) -> None:
        if self.beyond == "allow":
            return
        strange = [degree for degree in degrees if self.degrees and degree not in self.degrees]
        if strange:
            self._beyond(
                f"cp_degree {strange[0]} was not measured, only {', '.join(map(str, self.degrees))}",
                "Measure it, or allow only measured degrees",
            )
        if self.max_length is not None and num_tokens.size and num_tokens.max() > self.max_length:
            self._beyond(
                f"costs were measured up to {self.max_length} tokens and are asked for longer samples",
                "Measure longer samples, or cap their length",
            )

    def _beyond(self, what: str, way_out: str) -> None:
        message = f"CostModel ({self.source}): {what}; the prediction is an extrapolation. {way_out}."
        if self.beyond == "raise":
            raise ValueError(f"{message} beyond='warn' goes on with a warning.")
        # One text from one place: Python's default filter shows it once a process.
        warnings.warn(message, CostRangeWarning, stacklevel=1)

    def pairs(self, lengths: ArrayLike) -> NDArray[np.int64]:
        """[S] attended pairs of each sample, exact; for a stack, summed over its layers."""
        return attended_pairs(check_lengths(lengths), self.attention)

    def fixed_s(self, cp_degree: int = 1) -> float:
        """Seconds of a micro-batch on ``cp_degree`` ranks, tokens aside: ``fixed`` + message latency."""
        latency = 0.0 if self.communication is None else self.communication.latency(check_degree(cp_degree))
        return self.fixed + latency

    def nanoseconds(self, lengths: ArrayLike, cp_degree: int = 1) -> NDArray[np.int64]:
        """[S] the same in whole nanoseconds, half rounded up. Raises as `nanoseconds_by_degree` does."""
        cost_ns: NDArray[np.int64] = self.nanoseconds_by_degree(lengths, (cp_degree,))[0]
        return cost_ns

    def nanoseconds_by_degree(self, lengths: ArrayLike, cp_degrees: Sequence[int]) -> NDArray[np.int64]:
        """[D, S] whole nanoseconds of each sample at each of D degrees, half rounded up.

        One pass in compiled code: 65,536 samples at 7 degrees take 1 ms where calls one by one take 16.

        Raises:
            ValueError: as for a call.
            OverflowError: a sample takes longer than 73 years: the coefficients are surely in another unit.
        """
        from packing._rows import extremes  # numba: not paid for by `import balancer`

        num_tokens = check_lengths(lengths)
        degrees = [check_degree(degree) for degree in cp_degrees]
        self._check_range(num_tokens, degrees)
        if self.table is None:
            cost_ns = self._polynomial_ns(num_tokens, degrees)
        else:
            seconds = np.array([self.table(num_tokens, degree) for degree in degrees])
            rounded = np.floor(seconds * 1e9 + 0.5)
            cost_ns = np.where(rounded < MAX_NANOSECONDS, rounded, -1).astype(np.int64)
        if cost_ns.size and extremes(cost_ns.reshape(-1))[0] < 0:
            row = int(np.argwhere(cost_ns < 0)[0, 1])
            raise OverflowError(
                f"the cost of row {row} ({num_tokens[row]} tokens) exceeds 73 years. Coefficients are "
                "seconds per token and per attended pair; check their unit."
            )
        return cost_ns

    def _polynomial_ns(self, num_tokens: NDArray[np.int64], degrees: list[int]) -> NDArray[np.int64]:
        from balancer.costs._kernels import polynomial_ns  # numba: not paid for by `import balancer`

        link = self.communication
        wire_s = np.array([0.0 if link is None else link.wire_s_per_token(degree) for degree in degrees])
        cost_ns: NDArray[np.int64] = polynomial_ns(
            num_tokens,
            attended_pairs(num_tokens, self.attention),
            np.array(degrees, dtype=np.int64),
            wire_s,
            self.linear,
            self.quadratic,
            0.0 if link is None else float(link.overlap),
        )
        return cost_ns

    @property
    def fixed_ns(self) -> int:
        """Nanoseconds of every micro-batch at degree 1."""
        return self.fixed_nanoseconds(1)

    def fixed_nanoseconds(self, cp_degree: int = 1) -> int:
        """`fixed_s` in whole nanoseconds, half rounded up."""
        return int(np.floor(self.fixed_s(cp_degree) * 1e9 + 0.5))

    def with_communication(self, communication: Communication | CostModel | None) -> CostModel:
        """The model with another exchange inside CP groups, or that of another model, at any degree.

        Raises:
            ValueError: a measured table holds all that its degrees cost.
        """
        link = communication.communication if isinstance(communication, CostModel) else communication
        return replace(self, communication=link, degrees=())

    def for_topology(self, topology: Topology) -> CostModel:
        """The model whose communication knows where nodes end; itself where nothing changes."""
        if self.communication is None or self.communication.ranks_per_node == topology.ranks_per_node:
            return self
        return replace(
            self, communication=replace(self.communication, ranks_per_node=topology.ranks_per_node)
        )
