"""Planning for thousands of ranks and hundreds of sources, without any payload, and what it sends.

Each rank plans the whole step by itself and then asks for its own micro-batches only, so the time of one
rank is that of the data plane, and planning sends nothing. What is sent follows from the plan: a share from
each rank to its builder, questions from builders to readers, and tokens back.
"""

from __future__ import annotations

import pickle
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer import CostModel, Planner, Topology
from benchmarks.workloads import MIXES, clipped
from loaders import Mixture
from loaders.batches.reader import by_source
from loaders.batches.shares import Share, shares_of_rank
from loaders.opening import open_order
from loaders.order.steps import Steps
from loaders.planning.step import PlannedStep, Planning
from loaders.sources.base import Rows, Source
from loaders.state import Cursor

CAP = 16_384
ROWS = 20_000
"""Of each source."""
KINDS = ("commoncrawl", "github", "wlb_llm", "prolong", "chat", "long_sft", "single_image", "multi_image")


class LengthsOnly(Source):
    """A source that is nothing but lengths."""

    def __init__(self, name: str, lengths: NDArray[np.int64]) -> None:
        self.name, self._lengths = name, lengths

    def __len__(self) -> int:
        return int(self._lengths.size)

    def lengths(self) -> NDArray[np.int64]:
        return self._lengths

    def read(self, rows: NDArray[np.int64]) -> Rows:
        raise NotImplementedError("it holds no payload")

    def origin(self, row: int) -> str:
        return f"{self.name}, row {row}"

    def fingerprint(self) -> str:
        return self.name


def mixture_of(sources: int) -> Mixture:
    """Sources of published and assumed lengths, with weights as uneven as mixtures have them."""
    kinds = [KINDS[number % len(KINDS)] for number in range(sources)]
    lengths = [clipped(MIXES[kind](ROWS, number), CAP) for number, kind in enumerate(kinds)]
    weights = np.random.default_rng(0).lognormal(0.0, 1.5, sources)
    return Mixture(
        {f"{n}": LengthsOnly(f"{kinds[n]} {n}", lengths[n].astype(np.int64)) for n in range(sources)},
        weights={f"{n}": float(weight) for n, weight in enumerate(weights / weights.sum())},
        by="tokens",
        stop="all_exhausted",
        seed=0,
    )


def planner_rows(ranks: int = 4096, sources: int = 300, steps: int = 12) -> list[dict[str, Any]]:
    """Steps a second of one planning thread, and bytes of a step, by samples a rank."""
    mixture = mixture_of(sources)
    found = []
    for samples in (2, 4, 8, 16):
        begin = time.process_time()
        opened = open_order(
            mixture, length=None, capacity=CAP, oversize="error", shuffle=True, seed=0,
            samples_per_step=ranks * samples,
        )  # fmt: skip
        opening_s = time.process_time() - begin
        topology = Topology(ranks=ranks, ranks_per_node=8)
        options: dict[str, Any] = {"max_tokens": CAP, "cost": CostModel.generic(), "seed": 0}
        planning = Planning(
            steps=Steps(
                order=opened.order, catalogs=opened.catalogs, samples=ranks * samples, tokens=None,
                drop_last=True,
            ),
            topology=topology,
            planner=Planner(topology=topology, **options),
            options=options,
        )  # fmt: skip
        planned = planning.plan(Cursor())
        assert planned is not None
        planned = planning.plan(planned.behind)  # the first step compiles kernels
        members, plans = [], []
        for _ in range(steps):
            assert planned is not None
            begin, wall = time.process_time(), time.perf_counter()
            planned = planning.plan(planned.behind) or planning.plan(Cursor())
            assert planned is not None
            used, passed = time.process_time() - begin, time.perf_counter() - wall
            plans.append(planned.plan_s * used / passed)  # its share of the CPU time
            members.append(used - plans[-1])
        assert planned is not None
        middle = float(np.median(np.add(members, plans)))
        found.append(
            {
                "ranks": ranks,
                "sources": sources,
                "samples a rank": samples,
                "steps_per_cpu_s": 1.0 / middle,
                "members_ms": 1e3 * float(np.median(members)),
                "plan_ms": 1e3 * float(np.median(plans)),
                "imbalance": planned.plan.imbalance,
                "gap": planned.plan.gap,
                "opening_cpu_s": opening_s,
                **wire(planned, ranks),
            }
        )
    return found


def wire(planned: PlannedStep, ranks: int) -> dict[str, Any]:
    """Bytes of one step as they are pickled, without Ray's envelopes, whose number is told instead.

    Payload's lower bound: each token id once, 4 bytes, from the reader to the node that needs it. From the
    builder on it stays on the node, in shared memory.
    """
    shares = questions = answers = messages = 0
    for rank in range(ranks):
        for share in shares_of_rank(planned.plan, planned.table, rank=rank, step=planned.number):
            shares += len(pickle.dumps((share, rank, ()), 5))
            messages += 1
            for number, mine in by_source(share, int(planned.table.source.max()) + 1):
                questions += len(pickle.dumps(_question(share, number, mine), 5))
                answers += len(pickle.dumps(_answer(share, mine), 5))
                messages += 1
    payload = 4 * int(planned.table.num_tokens.sum())
    return {
        "payload_MB": payload / 1e6,
        "shares_MB": shares / 1e6,
        "questions_MB": questions / 1e6,
        "answers_over_payload": answers / payload,
        "wire_over_payload": (shares + questions + answers) / payload,
        "messages a rank": messages / ranks,
    }


def _question(share: Share, number: int, mine: NDArray[np.int64]) -> tuple[Any, ...]:
    return number, share.row[mine], share.start[mine], share.num_tokens[mine], share.step


def _answer(share: Share, mine: NDArray[np.int64]) -> tuple[Any, ...]:
    sizes = share.num_tokens[mine]
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    return np.zeros(int(sizes.sum()), np.int32), offsets, 0.001, int(sizes.sum())
