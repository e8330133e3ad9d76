"""What the cost model says of all steps of an epoch, free of the luck of the few that a run measures."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer import CostModel, Topology, plan_step
from loaders import DataLoader, open_source


def padded_s(lengths: NDArray[np.int64], ranks: int, cost: CostModel) -> float:
    """Predicted seconds of the slowest rank where each pads its samples to their longest."""
    shares = (lengths[rank::ranks] for rank in range(ranks))
    return max(cost.fixed + share.size * float(cost([share.max()])[0]) for share in shares)


def predict_epoch(loader: DataLoader, files: list[str], cost: CostModel) -> dict[str, Any]:
    """Predicted seconds of every policy over an epoch's steps, and CPU seconds to plan one balanced step."""
    lengths = open_source(files).lengths()
    ranks = loader.topology.ranks
    seconds = {"padded": 0.0, "packed": 0.0, "balanced": 0.0}
    plan_s = []
    for rows in loader.batch_sampler:
        step = lengths[np.asarray(rows)]
        seconds["padded"] += padded_s(step, ranks, cost)
        seconds["packed"] += plan(step, ranks, loader.max_tokens, cost, "equal_samples")
        start = time.thread_time()
        seconds["balanced"] += plan(step, ranks, loader.max_tokens, cost, "balanced")
        plan_s.append(time.thread_time() - start)
    return {"steps": len(plan_s), "seconds": seconds, "plan_s": float(np.mean(plan_s[1:] or plan_s))}


def plan(lengths: NDArray[np.int64], ranks: int, max_tokens: int, cost: CostModel, policy: str) -> float:
    """Predicted seconds of a step under one of evenload's policies."""
    topology = Topology(ranks=ranks)
    return plan_step(lengths, topology=topology, max_tokens=max_tokens, cost=cost, policy=policy).time_s
