"""How fast the links between ranks are: the communication part of a calibrated cost model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from balancer.costs.communication import METHODS, LinkTime

from .agreement import device_of
from .groups import ContextGroups
from .peers import Peers

SIZES = (1 << 14, 1 << 22)
"""Bytes of a rank's shard: one that shows latency, one that shows bandwidth."""


def measure_links(
    groups: ContextGroups, *, method: str = "ring", sizes: Sequence[int] = SIZES, repeats: int = 5
) -> dict[int, LinkTime]:
    """Latency and seconds a byte of one exchange, for each of the groups' degrees above 1.

    All ranks call it. All groups of a degree exchange at once, as they do in training; the slowest rank
    counts, and of ``repeats`` rounds the fastest. Degrees that do not divide the ranks are left out.

    Args:
        groups: the groups that training will use.
        method: ``"ring"``, ``"all_gather"`` or ``"ulysses"``, as in `balancer.cost.Communication`.
        sizes: bytes of a rank's shard, a small and a large one.
        repeats: rounds for each size.

    Returns the same on every rank: what `Communication.measured` takes.

    Raises:
        ValueError: an unknown method, or sizes that are not two different ones.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}.")
    small, large = sorted(sizes)
    if small == large:
        raise ValueError(f"sizes must be two different numbers of bytes, got {tuple(sizes)}.")
    links = {}
    for degree in groups.degrees:
        if degree == 1 or groups.topology.ranks % degree:
            continue
        peers = Peers(groups.get(groups.rank - groups.rank % degree, degree))
        fast, slow = (_fastest(peers, method, size, repeats) for size in (small, large))
        received = (degree - 1) / degree if method == "ulysses" else degree - 1
        s_per_byte = max(slow - fast, 0.0) / ((large - small) * received)
        links[degree] = LinkTime(
            latency_s=max(fast - small * received * s_per_byte, 0.0), s_per_byte=s_per_byte
        )
    return links


def _fastest(peers: Peers, method: str, size: int, repeats: int) -> float:
    """Seconds of one exchange: the slowest rank of the fastest round. One round before it warms up."""
    device = device_of(peers.group)
    shard = torch.zeros(size - size % peers.size or peers.size, dtype=torch.uint8, device=device)
    run = _exchange(peers, method, shard)
    fastest = float("inf")
    for number in range(repeats + 1):
        dist.barrier()
        start = time.perf_counter()
        run()
        _finish(device)
        slowest = torch.tensor(time.perf_counter() - start, dtype=torch.float64, device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if number > 0:
            fastest = min(fastest, float(slowest))
    return fastest


def _exchange(peers: Peers, method: str, shard: torch.Tensor) -> Callable[[], object]:
    if method == "all_gather":
        return lambda: peers.all_gather(shard)
    if method == "ulysses":
        return lambda: peers.all_to_all(shard.view(peers.size, -1))

    def ring() -> None:
        passed, spare = shard, torch.empty_like(shard)
        for _ in range(peers.size - 1):
            passed, spare = peers.shift(passed, spare).wait(), passed

    return ring


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
