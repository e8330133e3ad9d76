"""The planner's numbers: time, certified gap, and its peers on the same lengths and the same cost model.

    python -m benchmarks.planner [shapes] [karmarkar_karp] [megatron] [milp] [sync] [--peers DIR]

Each section prints its rows and writes them to ``benchmarks/results/planner_<section>.csv``; ``shapes`` also
draws a figure. Times are CPU seconds of the planning thread, the best of a few runs, since other work on the
machine stretches wall time. ``--peers`` is a folder with verl, megatron-core, prtpy, mip and
numberpartitioning, installed with ``pip install --no-deps --target DIR``; without it their rows are left out.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from balancer import CostModel, Topology, partition, plan_step
from balancer.cost import Communication
from balancer.costs.presets import preset
from benchmarks import hybrid_cp, workloads
from benchmarks.harness import FIGURES, load_with_stubs, publish
from tests.balancer.milp import least_time_s

FLEXSP = preset("flexsp-a100-7b")
DEGREES = (1, 2, 4, 8, 16, 32, 64)

MIXES: dict[str, Callable[[int, int], np.ndarray]] = {
    "wlb_llm": partial(workloads.quantiles, table=workloads.WLB_LLM_TABLE),
    "prolong": partial(workloads.quantiles, table=workloads.PROLONG_TABLE),
    "lognormal_1.2": partial(workloads.lognormal, mu=7.0, sigma=1.2),
    "lognormal_1.8": partial(workloads.lognormal, mu=6.5, sigma=1.8),
    "pareto_1.1": partial(workloads.pareto, shortest=300.0, tail=1.1),
    "two_humps": lambda n, seed: _two_humps(n, seed),
}


def _two_humps(n: int, seed: int) -> np.ndarray:
    """40 % of 200 to 8,000 tokens, the rest of 8,000 to 32,000, as long SFT sets have."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(n) < 0.4, rng.integers(200, 8000, n), rng.integers(8000, 32000, n))


def lengths_of(mix: str, n: int, seed: int, longest: int) -> np.ndarray:
    return np.clip(MIXES[mix](n, seed), 16, longest).astype(np.int64)


def cpu_seconds(run: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """(result, least CPU seconds of this thread). The first call, which may compile, does not count."""
    result = run()
    best = float("inf")
    for _ in range(repeats):
        start = time.thread_time()
        result = run()
        best = min(best, time.thread_time() - start)
    return result, best


def shapes(_: argparse.Namespace) -> list[dict[str, Any]]:
    """Time and certified gap over mixes and seeds, without and with the fixed cost of a micro-batch."""
    rows = []
    cases = [
        (65_536, 1024, 16_384, 1 << 20, 0.0, 8),
        (65_536, 1024, 16_384, 1 << 20, 0.629, 8),
        (16_384, 1024, 16_384, 1 << 20, 0.0, 8),
        (4_096, 128, 16_384, 1 << 20, 0.0, 8),
        (512, 64, 8_192, 393_216, 0.0, 8),
        (512, 64, 8_192, 393_216, 0.629, 8),
        (1_048_576, 16_384, 16_384, 1 << 20, 0.0, 1),
    ]
    for n, ranks, cap, longest, fixed, seeds in cases:
        cost = replace(FLEXSP, fixed=fixed)
        topology = Topology(ranks, ranks_per_node=8)
        for mix in MIXES:
            gaps, seconds = [], []
            for seed in range(seeds):
                lengths = lengths_of(mix, n, seed, longest)
                run = partial(
                    plan_step, lengths, topology=topology, max_tokens=cap, cost=cost, cp_degrees=DEGREES
                )
                plan, took = cpu_seconds(run, 5 if n < 10**6 else 1)
                gaps.append(plan.gap)
                seconds.append(took)
            rows.append(
                {
                    "samples": n, "ranks": ranks, "fixed_s": fixed, "mix": mix,
                    "ms_median": 1e3 * float(np.median(seconds)), "ms_worst": 1e3 * max(seconds),
                    "gap_median": float(np.median(gaps)), "gap_p95": float(np.quantile(gaps, 0.95)),
                    "gap_worst": max(gaps), "seeds": seeds,
                }
            )  # fmt: skip
    return rows


def draw_shapes(rows: Iterable[dict[str, Any]]) -> None:
    """Time against gap, one mark for each mix and shape."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    shapes_seen = dict.fromkeys((row["samples"], row["ranks"], row["fixed_s"]) for row in rows)
    for samples, ranks, fixed in shapes_seen:
        mine = [r for r in rows if (r["samples"], r["ranks"], r["fixed_s"]) == (samples, ranks, fixed)]
        label = f"{samples:,} on {ranks:,} ranks" + (", fixed cost" if fixed else "")
        axes.plot(
            [r["ms_median"] for r in mine],
            [max(100 * r["gap_median"], 1e-3) for r in mine],
            "o" if not fixed else "s",
            label=label,
        )
    axes.set(
        xscale="log", yscale="log", xlabel="planning time, ms of CPU", ylabel="gap to the proven bound, %"
    )
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(FIGURES / "planner_shapes.png", dpi=120)


def karmarkar_karp(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Degree 1, no cap: free and equal counts against Karmarkar-Karp in verl's and other packages' form."""
    verl = _verl(options.peers)
    rows = []
    for n, parts in ((512, 8), (1024, 64), (8192, 64)):
        for mix in [*MIXES, "uniform"]:
            lengths = lengths_of(mix, n, 0, 131_072) if mix in MIXES else workloads.uniform(n, 0)
            # verl's own cost: 24,576 n + n^2.
            work = [int(24_576 * x + x * x) for x in lengths.tolist()]
            for equal in (False, True):
                ours, took = cpu_seconds(partial(partition, work, parts, equal_size=equal), 5)
                bound = max(sum(work) / parts, max(work))
                if equal:
                    bound = max(bound, max(work) + sum(sorted(work)[: n // parts - 1]))
                row = {
                    "samples": n, "parts": parts, "mix": mix, "counts": "equal" if equal else "free",
                    "gap": max(sum(work[i] for i in part) for part in ours) / bound - 1, "ms": 1e3 * took,
                }  # fmt: skip
                if verl is not None:
                    theirs, theirs_took = _once(partial(verl, work, parts, equal))
                    row["verl_gap"] = max(sum(work[i] for i in part) for part in theirs) / bound - 1
                    row["verl_ms"] = 1e3 * theirs_took
                    row["faster"] = theirs_took / took
                for name, peer in _others(options.peers).items():
                    if not equal and n <= 1024:
                        sums, theirs_took = _once(partial(peer, work, parts))
                        row[f"{name}_gap"] = max(sums) / bound - 1
                        row[f"{name}_ms"] = 1e3 * theirs_took
                rows.append(row)
    return rows


def megatron(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Against megatron-core's hybrid-CP loader and its scheduler, under FlexSP's cost without fixed cost.

    Medians over seeds. Its scheduling is timed as its loader runs it each step, see `benchmarks.hybrid_cp`,
    and the scheduling function alone; ours from lengths to a rank's list of micro-batches.
    """
    wrapper = _megatron(options.peers)
    cost = replace(FLEXSP, fixed=0.0)
    return [
        _against_megatron(wrapper, cost, ranks, n)
        for ranks, n in ((8, 256), (16, 512), (32, 1024), (64, 2048))
    ]


def _against_megatron(wrapper: Any, cost: CostModel, ranks: int, n: int) -> dict[str, Any]:
    topology = Topology(ranks, ranks_per_node=8)
    degrees = tuple(d for d in DEGREES if d <= ranks)
    found: dict[str, list[float]] = {}
    seeds = 8
    for seed in range(seeds):
        lengths = lengths_of("wlb_llm", n, seed, 131_072)

        def ours(lengths: np.ndarray = lengths) -> Any:
            plan = plan_step(lengths, topology=topology, max_tokens=16_384, cost=cost, cp_degrees=degrees)
            plan.for_rank(0)
            return plan

        plan, took = cpu_seconds(ours, 5)
        row = {"step_s": plan.time_s, "gap": plan.gap, "ms": 1e3 * took}
        if wrapper is not None:
            theirs = hybrid_cp.schedule(wrapper, lengths, ranks, 16_384)
            together, apart = _round_seconds(theirs.rounds, lengths, cost.for_topology(topology), ranks)
            row |= {
                "megatron_step_s": together, "megatron_step_s_without_barriers": apart,
                "megatron_ms": 1e3 * theirs.step_s, "megatron_scheduler_ms": 1e3 * theirs.schedule_s,
                "faster": theirs.step_s / took, "faster_than_scheduler": theirs.schedule_s / took,
                "shorter": apart / plan.time_s,
            }  # fmt: skip
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return {"ranks": ranks, "samples": n, "seeds": seeds} | {
        name: float(np.median(values)) for name, values in found.items()
    }


def _round_seconds(
    rounds: list[list[list[int]]], lengths: np.ndarray, cost: CostModel, ranks: int
) -> tuple[float, float]:
    """(seconds with a barrier after each round, seconds of the busiest rank without) of a schedule."""
    busy = np.zeros(ranks)
    together = 0.0
    for samples_of_rank in rounds:
        shared: dict[int, int] = {}
        for samples in samples_of_rank:
            for sample in samples:
                shared[sample] = shared.get(sample, 0) + 1
        seconds = np.array(
            [sum(float(cost([lengths[s]], shared[s])[0]) for s in samples) for samples in samples_of_rank]
        )
        busy += seconds
        together += float(seconds.max())
    return together, float(busy.max())


def milp_instance(seed: int) -> tuple[np.ndarray, dict[str, Any]]:
    """A small step with degrees, a cap and one of both sync modes."""
    rng = np.random.default_rng(seed)
    ranks = int(rng.choice([2, 4]))
    degrees = (1, 2, 4)[: int(np.log2(ranks)) + 1] if rng.random() < 0.8 else (1,)
    lengths = np.exp(rng.normal(5.8, 1.0, int(rng.integers(5, 10))))
    lengths = np.clip(lengths, 10, 1000 * degrees[-1] - 8 * ranks).astype(np.int64)
    link = None
    if rng.random() < 0.7:
        link = Communication(bytes_per_token=1e5, intra_node=1e9, inter_node=1e9)
    cost = CostModel(
        linear=2e-4,
        quadratic=float(rng.choice([0, 1e-7, 1e-6])),
        fixed=float(rng.choice([0, 0.02])),
        communication=link,
    )
    return lengths, {
        "topology": Topology(ranks),
        "max_tokens": 1000,
        "cost": cost,
        "cp_degrees": degrees,
        "sync": ["step", "micro_batch"][seed % 2],
    }


def milp(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Against HiGHS on small instances; ``proven`` says whether it closed its own gap within a minute."""
    rows = []
    for seed in range(options.instances):
        lengths, step = milp_instance(seed)
        plan = plan_step(lengths, **step)
        ranks, cap = step["topology"].ranks, step["max_tokens"]
        number = max(2, -(-int(lengths.sum()) // (ranks * cap)) + 1, plan.num_slots)
        best, proven = least_time_s(lengths, micro_batches=number, limit_s=60, with_bound=True, **step)
        rows.append(
            {
                "seed": seed, "sync": step["sync"], "ranks": ranks, "samples": len(lengths),
                "degrees": len(step["cp_degrees"]), "fixed_s": step["cost"].fixed,
                "over_optimum": plan.time_s / best - 1, "proven": best <= proven * 1.001,
                "bound_under_optimum": 1 - plan.lower_bound_s / best,
            }
        )  # fmt: skip
    return rows


def sync(_: argparse.Namespace) -> list[dict[str, Any]]:
    """Ranks that meet in every micro-batch: 8,192 samples, 64 ranks, cap 32K, degree 1."""
    rows = []
    for fixed in (0.0, 0.629):
        cost = replace(FLEXSP, fixed=fixed)
        for mix in MIXES:
            gaps: dict[str, list[float]] = {"balanced": [], "equal_samples": [], "equal_tokens": []}
            for seed in range(8):
                lengths = lengths_of(mix, 8192, seed, 32_768)
                for policy, found in gaps.items():
                    plan = plan_step(
                        lengths,
                        topology=Topology(64),
                        max_tokens=32_768,
                        cost=cost,
                        sync="micro_batch",
                        policy=policy,
                    )
                    found.append(plan.gap)
            rows.append(
                {"mix": mix, "fixed_s": fixed}
                | {f"{policy}_gap_median": float(np.median(found)) for policy, found in gaps.items()}
                | {"balanced_gap_worst": max(gaps["balanced"])}
            )
    return rows


def _once(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.thread_time()
    result = run()
    return result, time.thread_time() - start


def _verl(peers: Path | None) -> Any:
    if peers is None:
        return None
    return load_with_stubs(
        peers / "verl" / "utils" / "seqlen_balancing.py",
        {
            "verl": {}, "verl.protocol": {"DataProto": object},
            "verl.utils": {"tensordict_utils": None}, "verl.utils.device": {"get_device_name": None},
        },
    ).get_seqlen_balanced_partitions  # fmt: skip


def _megatron(peers: Path | None) -> Any:
    if peers is None:
        return None
    core = peers / "megatron" / "core"
    scheduler = load_with_stubs(
        core / "pipeline_parallel" / "hybrid_cp_schedule.py",
        {
            "megatron": {}, "megatron.core": {"parallel_state": None},
            "megatron.core.rerun_state_machine": {"RerunDataIterator": object},
        },
    ).BalancedCPScheduler  # fmt: skip
    return load_with_stubs(
        core / "datasets" / "data_schedule.py",
        {
            "megatron.core.pipeline_parallel": {},
            "megatron.core.pipeline_parallel.hybrid_cp_schedule": {"BalancedCPScheduler": scheduler},
            "megatron.core.process_groups_config": {"ProcessGroupCollection": object},
        },
    ).HybridCPDataLoaderWrapper


def _others(peers: Path | None) -> dict[str, Callable[[list[int], int], list[int]]]:
    """Karmarkar-Karp of the two general packages: part sums."""
    if peers is None:
        return {}
    sys.path.append(str(peers))
    import numberpartitioning
    import prtpy

    def with_prtpy(work: list[int], parts: int) -> list[int]:
        sums = prtpy.partition(
            algorithm=prtpy.partitioning.kk, numbins=parts, items=work, outputtype=prtpy.out.Sums
        )
        return [int(s) for s in sums]

    def with_numberpartitioning(work: list[int], parts: int) -> list[int]:
        return list(numberpartitioning.karmarkar_karp(work, num_parts=parts).sizes)

    return {"prtpy": with_prtpy, "numberpartitioning": with_numberpartitioning}


SECTIONS = {
    "shapes": shapes,
    "karmarkar_karp": karmarkar_karp,
    "megatron": megatron,
    "milp": milp,
    "sync": sync,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], default=[])
    parser.add_argument("--peers", type=Path, help="folder with the peers' packages")
    parser.add_argument("--instances", type=int, default=200, help="small instances of the milp section")
    options = parser.parse_args()
    for section in options.sections or SECTIONS:
        print(f"== {section}", flush=True)
        rows = SECTIONS[section](options)
        publish(f"planner_{section}", rows)
        if section == "shapes":
            draw_shapes(rows)


if __name__ == "__main__":
    main()
