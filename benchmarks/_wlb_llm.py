"""WLB-LLM's packing table and breakdown at 7B-128K (OSDI 2025, arXiv 2503.17924), from what is public.

Public: Llama-2-7B on H100, TP 8 (4 with windows of 64K), CP 2, PP 4, DP 1; 4 micro-batches a step;
imbalance is the largest micro-batch's forward time x 4 / that of all; the packing algorithm; the split of
whole sequences over CP ranks that it is compared with. Percentiles of its lengths come from DistCA's
artifact. Not public: profiled times (the derived ones of `CostModel.from_config` stand in, once with all
communication hidden and once with none), the longest variable-length pack (1.5 windows here) and the bounds
of the outlier queues (chosen as the paper says, on other samples, for balance under a mean delay of half an
iteration).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer import CostModel, MicroBatches, StepPlan, Topology, plan_step
from balancer.simulation import walk
from benchmarks.workloads import MIXES, clipped

WINDOW, MICRO_BATCHES, STAGES, CP = 131_072, 4, 4, 2
TENSOR_PARALLEL = {65_536: 4, 131_072: 8}
"""Window -> GPUs that share a layer, as published for 7B."""
MOST_DELAY = 0.5
BOUNDS = (1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 3 / 4)
"""What the bounds of the outlier queues are chosen from, in windows."""

LLAMA_2_7B = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000,
}  # fmt: skip

Pack = NDArray[np.int64]
Iteration = list[Pack]
Seconds = Callable[[Pack], float]


def costs(window: int = WINDOW) -> dict[str, CostModel]:
    """Forward + backward of one pipeline stage, with all communication hidden and with none."""
    alone, width = CostModel.from_config(LLAMA_2_7B, "h100", fixed=0.0), TENSOR_PARALLEL[window]
    gpus = width * STAGES
    shown = CostModel.from_config(
        LLAMA_2_7B, "h100", tensor_parallel=width, pipeline_stages=STAGES, cp_method="all_gather",
        ranks_per_node=8 // width, fixed=0.0,
    )  # fmt: skip
    assert shown.communication is not None
    # A pack gathers once a layer, not once a document.
    gather = replace(shown.communication, latency_s=0.0, inter_latency_s=0.0)
    return {
        "hidden": CostModel(alone.linear / gpus, alone.quadratic / gpus),
        "shown": shown.with_communication(gather),
    }


def forward(cost: CostModel) -> CostModel:
    """The forward part: a third of matrix products and gathers, 2 of 7 attention products."""
    link = cost.communication
    return replace(
        cost,
        linear=cost.linear / 3,
        quadratic=cost.quadratic * 2 / 7,
        communication=None if link is None else replace(link, bytes_per_token=link.bytes_per_token / 3),
    )


def by_document(cost: CostModel) -> Seconds:
    """Seconds of a pack whose every document is shared evenly."""
    return lambda pack: float(cost(pack, CP).sum())


def by_sequence(cost: CostModel) -> Seconds:
    """Seconds of a pack that is cut as one sequence, a pair of mirrored chunks for each CP rank."""
    even = by_document(cost)
    return lambda pack: even(pack) + cost.quadratic * (most_pairs(pack) - _pairs(pack).sum() / CP)


def most_pairs(pack: Pack) -> float:
    """Attended pairs of the CP rank that has most, where chunks i and 2 x CP - 1 - i go to rank i."""
    bounds = np.arange(2 * CP + 1) * int(pack.sum()) // (2 * CP)
    starts = np.concatenate([[0], np.cumsum(pack)])
    document = np.minimum(np.searchsorted(starts, bounds, side="right") - 1, pack.size - 1)
    before = np.concatenate([[0.0], np.cumsum(_pairs(pack))])
    chunks = np.diff(before[document] + _pairs(bounds - starts[document]))
    return float((chunks[:CP] + chunks[: -CP - 1 : -1]).max())


def _pairs(lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    whole: NDArray[np.float64] = lengths * (lengths + 1.0) / 2
    return whole


def as_loaded(documents: int, seed: int, window: int = WINDOW) -> list[Iteration]:
    """Iterations of full windows, as they come: a document is cut where its window ends."""
    stream = clipped(MIXES["wlb_llm"](documents, seed), window).astype(np.int64)
    ends = np.cumsum(stream)
    windows = int(ends[-1]) // window
    cuts = np.unique(np.concatenate([ends, np.arange(1, windows + 1) * window]))
    cuts = cuts[cuts <= windows * window]
    pieces = np.diff(cuts, prepend=0)
    packs = np.split(pieces, np.searchsorted(cuts, np.arange(1, windows) * window, side="right"))
    return [packs[i : i + MICRO_BATCHES] for i in range(0, windows - MICRO_BATCHES + 1, MICRO_BATCHES)]


def window_of(iterations: list[Iteration]) -> int:
    """Tokens of a window as loaded."""
    return int(iterations[0][0].sum())


def longest_pack(iterations: list[Iteration]) -> int:
    """Tokens that a pack of variable length may hold, of what was loaded."""
    return window_of(iterations) * 3 // 2


def fixed_greedy(iterations: list[Iteration], together: int) -> list[Iteration]:
    """Full windows again: longest first, to the window with least squared length that has room.

    A piece that fits nowhere is cut, which happens to the shortest. Windows of like work share an iteration.
    """
    made = []
    for first in range(0, len(iterations) - together + 1, together):
        pieces = _documents(iterations[first : first + together])
        packs: list[list[int]] = [[] for _ in range(MICRO_BATCHES * together)]
        work, room = np.zeros(len(packs)), np.full(len(packs), window_of(iterations))
        for piece in np.sort(pieces)[::-1].tolist():
            left = piece
            while left > 0:
                fits = np.flatnonzero(room >= left)
                to = int(fits[work[fits].argmin()] if fits.size else room.argmax())
                part = min(left, int(room[to]))
                packs[to].append(part)
                work[to] += part * part
                room[to] -= part
                left -= part
        made += _dealt([np.array(packs[i]) for i in np.argsort(-work, kind="stable")])
    return made


def delayed(
    iterations: list[Iteration], bounds: Sequence[int], cost: CostModel
) -> tuple[list[Iteration], float]:
    """The paper's Algorithm 1: (its iterations, mean delay of a token in iterations).

    Documents of at least bounds[0] wait in the queue of their length until it has one for each micro-batch.
    All others go, longest first, to the micro-batch with least work, or the shortest where that is full.
    """
    queues: list[list[tuple[int, float, int]]] = [[] for _ in bounds]
    waiting: list[tuple[int, float, int]] = []
    made, delay, tokens, most = [], 0, 0, longest_pack(iterations)
    for now, iteration in enumerate(iterations):
        new: list[tuple[int, float, int]] = []
        documents = _documents([iteration])
        levels = np.searchsorted(bounds, documents, side="right") - 1
        for length, seconds, level in zip(
            documents.tolist(), cost(documents, CP).tolist(), levels.tolist(), strict=True
        ):
            (queues[level] if level >= 0 else new).append((length, seconds, now))
        for queue in queues:
            if len(queue) >= MICRO_BATCHES:
                new += queue[:MICRO_BATCHES]
                del queue[:MICRO_BATCHES]
        new.sort(key=lambda document: -document[0])
        packs: list[list[int]] = [[] for _ in range(MICRO_BATCHES)]
        work, held = np.zeros(MICRO_BATCHES), np.zeros(MICRO_BATCHES, np.int64)
        left = []
        for length, seconds, came in waiting + new:
            to = int(work.argmin())
            if held[to] + length >= most:
                to = int(held.argmin())
            if held[to] + length >= most:
                left.append((length, seconds, came))
                continue
            packs[to].append(length)
            held[to] += length
            work[to] += seconds
            delay += length * (now - came)
            tokens += length
        waiting = left
        made.append([np.array(pack, dtype=np.int64) for pack in packs])
    return made, delay / max(tokens, 1)


def tuned_bounds(queues: int, cost: CostModel, sample: list[Iteration]) -> tuple[int, ...]:
    """Bounds that balance best on a sample, of those that delay a token by half an iteration or less."""
    found = []
    lengths = [round(bound * window_of(sample)) for bound in BOUNDS]
    for bounds in combinations(lengths, queues):
        made, delay = delayed(sample, bounds, cost)
        if delay <= MOST_DELAY:
            found.append((imbalance(made, by_document(cost)), bounds))
    return min(found)[1]


def planned(iterations: list[Iteration], together: int, cost: CostModel) -> list[Iteration]:
    """The planner's packs of the same documents, of several iterations together, none of them delayed."""
    # One rank stands for a CP group, so a token costs it half, and the gather as well.
    gather = float((cost([WINDOW], CP) - cost.with_communication(None)([WINDOW], CP))[0])
    shared = CostModel(cost.linear / CP + gather / WINDOW, cost.quadratic / CP)
    made = []
    for first in range(0, len(iterations) - together + 1, together):
        pieces = _documents(iterations[first : first + together])
        plan = plan_step(
            pieces,
            topology=Topology(MICRO_BATCHES * together),
            max_tokens=longest_pack(iterations),
            cost=shared,
            micro_batches=1,
        )
        batches = plan.micro_batches
        order = np.argsort(-batches.cost_s, kind="stable")
        made += _dealt([pieces[batches.samples(m)] for m in order])
    return made


PUBLISHED_IMBALANCE = {
    "as loaded": 1.44,
    "fixed length, greedy, 1 iteration": 1.41,
    "fixed length, greedy, 2 iterations": 1.22,
    "fixed length, greedy, 4 iterations": 1.11,
    "fixed length, greedy, 8 iterations": 1.08,
    "variable length, 1 queue": 1.24,
    "variable length, 2 queues": 1.05,
    "variable length, 3 queues": 1.05,
}
"""Their Table 2."""

PUBLISHED_SPEED = {
    ("as loaded", "by_sequence"): 1.0,
    ("as loaded", "by_document"): 1.02,
    ("variable length, 2 queues", "by_sequence"): 1.28,
    ("variable length, 2 queues", "by_document"): 1.33,
}
"""Their Figure 13, times as fast as plain; the last with the better of both splits for each micro-batch."""

SPLITS = {"by_sequence": by_sequence, "by_document": by_document}


def packings(
    iterations: list[Iteration], cost: CostModel, sample: list[Iteration]
) -> Iterator[tuple[str, list[Iteration], dict[str, Any]]]:
    """(name, iterations, what else is known of it) of every way of packing; cost: of the forward part."""
    yield "as loaded", iterations, {"delay": 0.0}
    for together in (1, 2, 4, 8):
        name = f"fixed length, greedy, {together} iteration{'s' * (together > 1)}"
        yield name, fixed_greedy(iterations, together), {"delay": (together - 1) / 2}
    for queues in (1, 2, 3):
        bounds = tuned_bounds(queues, cost, sample)
        made, delay = delayed(iterations, bounds, cost)
        name = f"variable length, {queues} queue{'s' * (queues > 1)}"
        yield name, made, {"delay": delay, "bounds": " ".join(map(str, bounds))}
    for together in (1, 2, 4):
        planned(iterations[:together], together, cost)
        start = time.thread_time()
        made = planned(iterations, together, cost)
        took = time.thread_time() - start
        name = f"evenload, {together} iteration{'s' * (together > 1)}"
        yield name, made, {"delay": (together - 1) / 2, "ms_an_iteration": 1e3 * took / len(made)}


def packing_rows(documents: int = 60_000) -> list[dict[str, Any]]:
    """Imbalance and speed of every way of packing, both kinds of times, both splits over CP ranks."""
    iterations, sample = as_loaded(documents, 0), as_loaded(documents // 4, 1)
    rows = []
    for communication, cost in costs().items():
        first = forward(cost)
        plain = token_seconds(iterations, by_sequence(cost))
        for name, made, known in packings(iterations, first, sample):
            for split, seconds in SPLITS.items():
                rows.append(
                    {"communication": communication, "packing": name, "split": split}
                    | {"iterations": len(made), "imbalance": imbalance(made, seconds(first))}
                    | {"published_imbalance": PUBLISHED_IMBALANCE.get(name, "")}
                    | {"times_as_fast": plain / token_seconds(made, seconds(cost))}
                    | {"published_times_as_fast": PUBLISHED_SPEED.get((name, split), "")}
                    | {"step_s": token_seconds(made, seconds(cost)) * MICRO_BATCHES * WINDOW}
                    | {"delay": "", "bounds": "", "ms_an_iteration": ""}
                    | known
                )
        free = token_seconds_planned(iterations, cost)
        rows.append(
            {"communication": communication, "packing": "evenload, 1 iteration, CP 1 or 2"}
            | {"split": "by_document", "iterations": len(iterations)}
            | {"times_as_fast": plain / free, "step_s": free * MICRO_BATCHES * WINDOW, "delay": 0.0}
        )
    return rows


PUBLISHED_BY_WINDOW = {65_536: 1.15, 131_072: 1.30}
"""Times as fast as plain, the mean of their four models."""


def window_rows(documents: int = 60_000) -> list[dict[str, Any]]:
    """How many times as fast as plain all of it is, by window."""
    rows = []
    for window, published in PUBLISHED_BY_WINDOW.items():
        iterations, sample = (as_loaded(n, seed, window) for n, seed in ((documents, 0), (documents // 4, 1)))
        for communication, cost in costs(window).items():
            first = forward(cost)
            made, _ = delayed(iterations, tuned_bounds(2, first, sample), first)
            plain = token_seconds(iterations, by_sequence(cost))
            rows.append(
                {"window": window, "communication": communication, "iterations": len(iterations)}
                | {"published_mean": published}
                | {"imbalance": imbalance(iterations, by_sequence(first))}
                | {"times_as_fast": plain / token_seconds(made, by_document(cost))}
                | {"evenload_times_as_fast": plain / token_seconds_planned(iterations, cost)}
            )
    return rows


def imbalance(iterations: list[Iteration], seconds: Seconds) -> float:
    """Mean over iterations of the largest micro-batch's time x their number / the time of all."""
    times = np.array([[seconds(pack) if pack.size else 0.0 for pack in packs] for packs in iterations])
    busy = times[times.sum(axis=1) > 0]
    return float((busy.max(axis=1) * MICRO_BATCHES / busy.sum(axis=1)).mean())


def token_seconds(iterations: list[Iteration], seconds: Seconds) -> float:
    """Seconds a token: every iteration is walked through the pipeline, stages of equal time."""
    pace = np.ones((1, STAGES))
    taken = [walk(_plan([p for p in packs if p.size], seconds), pace).time_s for packs in iterations]
    return sum(taken) / sum(int(pack.sum()) for packs in iterations for pack in packs)


def token_seconds_planned(iterations: list[Iteration], cost: CostModel) -> float:
    """Seconds a token where the planner may also run a micro-batch on one of the two CP ranks."""
    taken = 0.0
    per_node = 8 // TENSOR_PARALLEL[window_of(iterations)]
    topology = Topology(CP, ranks_per_node=per_node, pipeline_stages=STAGES)
    for iteration in iterations:
        plan = plan_step(
            _documents([iteration]), topology=topology, max_tokens=longest_pack(iterations) // CP, cost=cost,
            cp_degrees=(1, CP),
        )  # fmt: skip
        taken += walk(plan, np.ones((CP, STAGES))).time_s
    return taken / sum(int(pack.sum()) for packs in iterations for pack in packs)


def _plan(packs: Iteration, seconds: Seconds) -> StepPlan:
    """Packs in a row on one CP group."""
    number = len(packs)
    one = np.ones(number, np.int32)
    times = np.array([seconds(pack) for pack in packs])
    batches = MicroBatches(
        first_rank=0 * one, cp_degree=one, slot=np.arange(number, dtype=np.int32),
        tokens=np.array([pack.sum() for pack in packs]), cost_s=times,
        order=np.arange(number), offsets=np.arange(number + 1),
    )  # fmt: skip
    return StepPlan(
        micro_batches=batches, ranks=1, sync="step", num_slots=number, rank_time_s=times.sum(keepdims=True),
        time_s=float(times.sum() + (STAGES - 1) * times.max(initial=0.0)), lower_bound_s=0.0,
    )  # fmt: skip


def _documents(iterations: list[Iteration]) -> NDArray[np.int64]:
    return np.concatenate([pack for packs in iterations for pack in packs])


def _dealt(packs: list[Pack]) -> list[Iteration]:
    return [packs[i : i + MICRO_BATCHES] for i in range(0, len(packs), MICRO_BATCHES)]
