"""What sharing one sequence among ranks costs on the links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from balancer.costs.checks import check_coefficient

METHODS = ("ring", "all_gather", "ulysses")


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkTime:
    """What one exchange of a group was measured to take, see `balancer.runtime.links.measure_links`."""

    latency_s: float
    """Seconds of an exchange of no bytes."""
    s_per_byte: float
    """Seconds for each byte that a rank receives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Communication:
    """Exchange inside a CP group, forward + backward, over all layers.

    With ``ring`` and ``all_gather`` every rank receives the keys and values (and their gradients) of the
    other ``d - 1`` shards: ``bytes_per_token * n * (d - 1) / d`` bytes a rank. With ``ulysses`` it trades
    heads for tokens of its own shard: ``bytes_per_token * n / d * (d - 1) / d``. A ring moves the next shard
    while it attends to this one, so that only what outlasts attention costs time.
    """

    method: str = "ring"
    """``"ring"``, ``"all_gather"`` or ``"ulysses"``."""
    bytes_per_token: float
    """Bytes on the wire for each token, all layers, forward + backward: keys, values and their gradients for
    ring and all-gather, queries, keys, values and outputs and their gradients for Ulysses."""
    intra_node: float
    """Bytes per second that a rank receives from ranks of its own node."""
    inter_node: float
    """The same, for groups that span nodes."""
    latency_s: float = 0.0
    """Seconds for each message inside a node."""
    inter_latency_s: float = 0.0
    """The same, for groups that span nodes."""
    rounds: int = 1
    """Exchanges in forward + backward: layers times passes over the ring or collectives a layer."""
    overlap: float = 0.0
    """Share of the attention time that can hide communication: 0 = none, 1 = all."""
    ranks_per_node: int | None = None
    """Neighbouring ranks with the fast links; ``None``: all of them. `CostModel.for_topology` sets it."""
    measured_s_per_token: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Measured seconds on the wire for each token, by degree, instead of the formula. A degree between two
    measured ones spends the rank-time of the wider, one beyond them that of the widest."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(
                f"Communication.method must be one of {', '.join(METHODS)}, got {self.method!r}."
            )
        for name in ("bytes_per_token", "latency_s", "inter_latency_s"):
            check_coefficient(f"Communication.{name}", getattr(self, name))
        for name in ("intra_node", "inter_node"):
            check_coefficient(f"Communication.{name}", getattr(self, name), positive=True)
        if self.inter_node > self.intra_node:
            raise ValueError(
                f"Communication.inter_node must not exceed intra_node, got {self.inter_node:.3g} over "
                f"{self.intra_node:.3g} bytes/s. Give the slower number for both."
            )
        if not 0 <= check_coefficient("Communication.overlap", self.overlap) <= 1:
            raise ValueError(f"Communication.overlap must lie in 0..1, got {self.overlap!r}.")
        if int(self.rounds) != self.rounds or self.rounds < 0:
            raise ValueError(
                f"Communication.rounds must be a whole number of at least 0, got {self.rounds!r}."
            )
        previous = 0.0
        for degree in sorted(self.measured_s_per_token):
            name = f"Communication.measured_s_per_token[{degree}]"
            rank_seconds = degree * check_coefficient(name, self.measured_s_per_token[degree])
            if rank_seconds < previous * (1 - 1e-9):
                raise ValueError(
                    f"{name}: a wider group must not use less rank-time: {degree} ranks would use "
                    f"{rank_seconds:.3g} s a token, a narrower group {previous:.3g} s. Raise the number, or "
                    "measure again."
                )
            previous = rank_seconds

    def spans_nodes(self, cp_degree: int) -> bool:
        """Whether a group of ``cp_degree`` neighbouring ranks is larger than a node."""
        return self.ranks_per_node is not None and cp_degree > self.ranks_per_node

    def wire_s_per_token(self, cp_degree: int) -> float:
        """Seconds on the wire for each token of a sequence, before overlap; 0 for one rank."""
        if cp_degree == 1:
            return 0.0
        if self.measured_s_per_token:
            measured = sorted(self.measured_s_per_token)
            degree = next((d for d in measured if d >= cp_degree), measured[-1])
            return degree * self.measured_s_per_token[degree] / cp_degree
        bandwidth = self.inter_node if self.spans_nodes(cp_degree) else self.intra_node
        return self.bytes_per_token * self._share(cp_degree) / bandwidth

    def latency(self, cp_degree: int) -> float:
        """Seconds of message latency in each micro-batch, which exchanges once for all of its samples."""
        if cp_degree == 1:
            return 0.0
        return (
            self.rounds
            * self._hops(cp_degree)
            * (self.inter_latency_s if self.spans_nodes(cp_degree) else self.latency_s)
        )

    def slowed(self, factor: float) -> Communication:
        """The same exchange taking ``factor`` times as long."""
        return replace(
            self,
            intra_node=self.intra_node / factor,
            inter_node=self.inter_node / factor,
            latency_s=self.latency_s * factor,
            inter_latency_s=self.inter_latency_s * factor,
            measured_s_per_token={degree: s * factor for degree, s in self.measured_s_per_token.items()},
        )

    def measured(self, links: Mapping[int, LinkTime]) -> Communication:
        """The same bytes over links as they were measured, by degree.

        Rank-time is raised where a wider group was measured to spend less of it, which the planner's bound
        does not allow.
        """
        wire_s, previous, latency_s = {}, 0.0, 0.0
        for degree in sorted(links):
            share = self._share(degree)
            rank_s = max(degree * self.bytes_per_token * share * links[degree].s_per_byte, previous)
            wire_s[degree], previous = rank_s / degree, rank_s
            latency_s = max(latency_s, links[degree].latency_s / self._hops(degree))
        return replace(self, measured_s_per_token=wire_s, latency_s=latency_s, inter_latency_s=latency_s)

    def _share(self, cp_degree: int) -> float:
        """Bytes that a rank receives for each byte of the whole sequence."""
        share = (cp_degree - 1) / cp_degree
        return share / cp_degree if self.method == "ulysses" else share

    def _hops(self, cp_degree: int) -> int:
        """Messages after each other in one exchange."""
        return 1 if self.method == "ulysses" else cp_degree - 1

    def exposed_s(
        self, lengths: NDArray[np.int64], attention_s: NDArray[np.float64], cp_degree: int
    ) -> NDArray[np.float64]:
        """[S] seconds that communication adds to each sequence.

        attention_s: [S] seconds of attention on one rank of the group, which a ring hides behind.
        """
        wire_s: NDArray[np.float64] = lengths.astype(np.float64) * self.wire_s_per_token(cp_degree)
        if self.overlap == 0 or cp_degree == 1:
            return wire_s
        exposed_s: NDArray[np.float64] = np.maximum(wire_s - self.overlap * attention_s, 0.0)
        return exposed_s
