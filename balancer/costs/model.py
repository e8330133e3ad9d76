"""The cost model: lengths and a CP degree in, seconds out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.costs.attention import attended_pairs, parse_attention
from balancer.costs.checks import check_coefficient, check_degree, check_lengths
from balancer.costs.communication import Communication
from balancer.topology import Topology


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
        source: where the coefficients come from, for messages and reports.

    Raises:
        ValueError: coefficients that are negative, not finite or all zero, or an unknown pattern.
    """

    linear: float
    quadratic: float = 0.0
    fixed: float = 0.0
    attention: str = "causal"
    communication: Communication | None = None
    source: str = "given"

    def __post_init__(self) -> None:
        for name in ("linear", "quadratic", "fixed"):
            object.__setattr__(self, name, check_coefficient(f"CostModel.{name}", getattr(self, name)))
        if self.linear == self.quadratic == self.fixed == 0:
            raise ValueError(
                "CostModel: linear, quadratic and fixed are all 0, so every plan would cost nothing."
            )
        parse_attention(self.attention)

    @classmethod
    def generic(cls) -> CostModel:
        """A generic decoder: linear and quadratic work are equal at 32,768 tokens.

        For use where nothing is known of the model. Published crossings lie between 8K (one layer, forward,
        ByteScale) and 128K tokens (WLB-LLM's heuristic for TP 8); FlexSP's end-to-end fit of a 7B model on
        A100s crosses at 36K. The scale, 0.1 ms a token, is arbitrary and drops out of every comparison.
        """
        linear = 1e-4
        return cls(linear, linear * 32768 / (32768 * 32769 // 2), source="generic decoder")

    def __call__(self, lengths: ArrayLike, cp_degree: int = 1) -> NDArray[np.float64]:
        """[S] seconds of each sample on every rank of a group of ``cp_degree``, without the fixed cost.

        Raises:
            ValueError: lengths outside ``0..2**31 - 1`` or not whole, or a degree below 1.
        """
        num_tokens, degree = check_lengths(lengths), check_degree(cp_degree)
        attention_s = self.quadratic * self._pairs(num_tokens)
        if self.communication is None or degree == 1:
            return (self.linear * num_tokens + attention_s) / degree
        exposed_s = self.communication.exposed_s(num_tokens, attention_s / degree, degree)
        return (self.linear * num_tokens + attention_s) / degree + exposed_s

    def _pairs(self, num_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        return attended_pairs(num_tokens, self.attention)

    def pairs(self, lengths: ArrayLike) -> NDArray[np.int64]:
        """[S] attended pairs of each sample, exact; for a stack, summed over its layers."""
        return self._pairs(check_lengths(lengths))

    def fixed_s(self, cp_degree: int = 1) -> float:
        """Seconds of a micro-batch on ``cp_degree`` ranks, tokens aside: ``fixed`` + message latency."""
        latency = 0.0 if self.communication is None else self.communication.latency(check_degree(cp_degree))
        return self.fixed + latency

    def nanoseconds(self, lengths: ArrayLike, cp_degree: int = 1) -> NDArray[np.int64]:
        """[S] the same in whole nanoseconds, half rounded up.

        Raises:
            OverflowError: a sample takes longer than 73 years: the coefficients are surely in another unit.
        """
        seconds = self(lengths, cp_degree)
        nanoseconds = np.floor(seconds * 1e9 + 0.5)
        if nanoseconds.size and nanoseconds.max() >= 2**61:
            row = int(np.argmax(nanoseconds))
            raise OverflowError(
                f"the cost of row {row}, {seconds[row]:.3g} s, is too large for nanoseconds in 64 bits. "
                "Coefficients are seconds per token and per pair; check their unit."
            )
        return nanoseconds.astype(np.int64)

    @property
    def fixed_ns(self) -> int:
        """Nanoseconds of every micro-batch at degree 1."""
        return self.fixed_nanoseconds(1)

    def fixed_nanoseconds(self, cp_degree: int = 1) -> int:
        """`fixed_s` in whole nanoseconds, half rounded up."""
        return int(np.floor(self.fixed_s(cp_degree) * 1e9 + 0.5))

    def for_topology(self, topology: Topology) -> CostModel:
        """The model whose communication knows where nodes end; itself where nothing changes."""
        if self.communication is None or self.communication.ranks_per_node == topology.ranks_per_node:
            return self
        return replace(
            self, communication=replace(self.communication, ranks_per_node=topology.ranks_per_node)
        )
