"""What the members of one context-parallel group say to each other.

Two kinds of groups give the same four exchanges: an own process group, and a `RingGroup`, a run of ranks
inside a larger group that talk point to point. The second has no communicator of its own, so any number
of degrees and positions costs no more memory than their one parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class RingGroup:
    """Members of a larger process group that exchange point to point."""

    parent: Any
    """Process group with at least the members; None: the default one."""
    ranks: tuple[int, ...]
    """Global ranks of the members, in order."""


class Pending:
    """A message on its way; `wait` gives the tensor that arrived."""

    def __init__(self, arriving: Tensor, works: Sequence[Any]) -> None:
        self._arriving, self._works = arriving, works

    def wait(self) -> Tensor:
        """The tensor from the previous member."""
        for work in self._works:
            work.wait()
        return self._arriving


class Peers:
    """The exchanges of attention. All members call the same ones in the same order with equal shapes."""

    def __init__(self, group: Any) -> None:
        if isinstance(group, RingGroup):
            self.group, self.ranks, self.collectives = group.parent, group.ranks, False
        else:
            self.group, self.ranks = group, tuple(dist.get_process_group_ranks(group))
            self.collectives = True
        self.size = len(self.ranks)
        self.rank = self.ranks.index(dist.get_rank())

    def all_gather(self, tensor: Tensor) -> Tensor:
        """[size, ...] Every member's ``tensor``."""
        gathered = tensor.new_empty(self.size, *tensor.shape)
        if self.collectives:
            dist.all_gather(list(gathered.unbind()), tensor.contiguous(), group=self.group)
        else:
            self._exchange([tensor.contiguous()] * self.size, list(gathered.unbind()))
        return gathered

    def reduce_scatter(self, parts: Tensor) -> Tensor:
        """parts: [size, ...] one for each member. The sum over members of those for this one."""
        parts = parts.contiguous()
        if self.collectives:
            total = torch.empty_like(parts[0])
            dist.reduce_scatter(total, list(parts.unbind()), group=self.group)
            return total
        return self.all_to_all(parts).sum(0)

    def all_to_all(self, parts: Tensor) -> Tensor:
        """parts: [size, ...] one for each member. [size, ...] one from each member."""
        parts = parts.contiguous()
        arrived = torch.empty_like(parts)
        if self.collectives:
            dist.all_to_all_single(arrived, parts, group=self.group)
        else:
            self._exchange(list(parts.unbind()), list(arrived.unbind()))
        return arrived

    def shift(self, tensor: Tensor, into: Tensor, tag: int = 0) -> Pending:
        """Start sending ``tensor`` to the next member and receiving the previous one's ``into`` a buffer."""
        following, previous = self.ranks[(self.rank + 1) % self.size], self.ranks[self.rank - 1]
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, tensor, following, group=self.group, tag=tag),
                dist.P2POp(dist.irecv, into, previous, group=self.group, tag=tag),
            ]
        )
        return Pending(into, works)

    def _exchange(self, sent: list[Tensor], arrived: list[Tensor]) -> None:
        arrived[self.rank].copy_(sent[self.rank])
        operations = []
        for member, global_rank in enumerate(self.ranks):
            if member != self.rank:
                operations.append(dist.P2POp(dist.isend, sent[member], global_rank, group=self.group))
                operations.append(dist.P2POp(dist.irecv, arrived[member], global_rank, group=self.group))
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
