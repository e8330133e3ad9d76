"""What policies cost on clusters of 8 to 16,384 GPUs, simulated: the planner's plans, jitter, pipelines.

    python -m benchmarks cluster [SECTION ...]        all without one; --help lists them

Coefficients, unless a section says otherwise, are FlexSP's published ones of a 7B model on A100-40GB
(FLOPs: 6 a weight and token and 12 a channel, layer and causal pair, without the vocabulary, whose size
is not published; peak 312 TFLOP/s). All seconds are predictions of a cost model. Each section prints its
rows and writes them to ``benchmarks/results/cluster_<section>.csv``; ``scale`` also draws a figure.
``demo`` holds predictions to what `make demo` measured on this machine, and is left out where that has
not run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from balancer import POLICIES, CostModel, Topology, plan_step, simulate
from balancer.simulation import ModelFlops, SimulatedPolicy, walk
from benchmarks import _wlb_llm
from benchmarks.harness import FIGURES, publish
from benchmarks.workloads import MIXES, clipped
from loaders import open_source
from packing import pack

FLEXSP = CostModel.preset("flexsp-a100-7b")
LAYERS, HIDDEN = 32, 4096
FLOPS = ModelFlops(per_token=6 * 12 * LAYERS * HIDDEN**2, per_pair=12 * LAYERS * HIDDEN, peak=312e12)
DEGREES = (1, 2, 4, 8, 16)
CAP, LONGEST, SAMPLES_A_RANK, JITTER = 16_384, 131_072, 16, 0.03
RANKS = (8, 64, 256, 1024, 4096, 16_384)

LLAMA_32B = {
    "model_type": "llama", "hidden_size": 6656, "num_hidden_layers": 60, "num_attention_heads": 52,
    "num_key_value_heads": 52, "intermediate_size": 17920, "vocab_size": 32000,
}  # fmt: skip

# Hydraulis (arXiv 2412.07894), 32B on A800, TP 8: 1.13 GPU-ms a token, linear = quadratic at 66.5K tokens,
# a fixed cost worth 869 tokens. A data rank is a node, so that CP crosses nodes at derived rates.
_LINEAR_32B = 1.13e-3 / 8
HYDRAULIS_32B = CostModel(
    _LINEAR_32B, _LINEAR_32B / 66_500, 869 * _LINEAR_32B, attention="full",
    communication=CostModel.from_config(LLAMA_32B, "a100", tensor_parallel=8, ranks_per_node=1).communication,
)  # fmt: skip
FLOPS_32B = ModelFlops(per_token=6 * 12 * 60 * 6656**2, per_pair=12 * 60 * 6656, peak=8 * 312e12)
MODELS = {"7B": (FLEXSP, FLOPS, 1), "32B": (HYDRAULIS_32B, FLOPS_32B, 8)}
GAIN_MIXES = ("commoncrawl", "github", "wlb_llm", "prolong", "chat", "long_sft", "multi_image", "video")

DEMO = Path(__file__).parents[1] / "demo"

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip

# DistCA's blog: idle share from 2 to 8 replicas, all-gather share from CP 2 to 32. Only the ends are given.
DISTCA_IDLE = {2: 0.02, 8: 0.55}
DISTCA_GATHER = {2: 0.02, 32: 0.50}


def setting(
    mix: str,
    ranks: int,
    *,
    samples: int = SAMPLES_A_RANK,
    cost: CostModel = FLEXSP,
    flops: ModelFlops = FLOPS,
    per_node: int = 8,
    **topology: Any,
) -> dict[str, Any]:
    """Lengths of a few steps and the cluster that runs them."""
    batch = ranks * samples
    steps = max(4, min(40, 65_536 // batch))
    return {
        "table_or_lengths": clipped(MIXES[mix](batch * steps, 0), LONGEST).astype(np.int64),
        "topology": Topology(ranks, ranks_per_node=per_node, **topology),
        "max_tokens": CAP,
        "cost": cost,
        "cp_degrees": tuple(d for d in DEGREES if d <= ranks),
        "global_batch_size": batch,
        "steps": steps,
        "flops": flops,
    }


def tuned_static(given: dict[str, Any]) -> SimulatedPolicy:
    """The fastest plan at one degree for all: every degree that holds the longest sample, both balancers."""
    found = [
        outcome
        for degree in given["cp_degrees"]
        if degree * CAP >= given["table_or_lengths"].max()
        for outcome in simulate(
            **{**given, "cp_degrees": (degree,)},
            policies=within_reach(["static_cp", "karmarkar_karp"], given),
        )
        if not outcome.error
    ]
    return min(found, key=lambda outcome: outcome.time_s)


def within_reach(policies: Iterable[str], given: dict[str, Any]) -> list[str]:
    """The policies that plan in seconds: largest differencing takes 17 s a step at 16,384 ranks."""
    wide = given["topology"].ranks > 4096
    return [name for name in policies if not (wide and name == "karmarkar_karp")]


def numbers(outcome: SimulatedPolicy) -> dict[str, Any]:
    """One row of what was simulated."""
    p5, p50, p95, _ = outcome.quantiles_s()
    return {
        "steps": len(outcome),
        "step_s": outcome.mean_s,
        "p5_s": float(p5),
        "p50_s": float(p50),
        "p95_s": float(p95),
        "planned_s": float(outcome.planned_s.sum()) / max(len(outcome), 1),
        "idle": outcome.idle,
        "mfu": outcome.mfu,
        "memory": float(outcome.memory.max(initial=0.0)),
        "tokens_per_s": outcome.tokens_per_s,
        "error": outcome.error,
    }


def compared(given: dict[str, Any], policies: Iterable[str]) -> list[dict[str, Any]]:
    """Every policy and the tuned one, each with how many times as long as balanced it takes."""
    reached = simulate(**given, policies=within_reach(policies, given))
    outcomes = [(outcome.policy, outcome) for outcome in reached]
    outcomes.insert(-1, ("tuned_static", tuned_static(given)))
    best_s = outcomes[-1][1].time_s
    return [{"policy": name, **numbers(o), "over_balanced": o.time_s / best_s} for name, o in outcomes]


def scale() -> list[dict[str, Any]]:
    """Every policy from 8 to 16,384 GPUs, 16 samples a rank and step, jitter 3 %."""
    return [
        {"mix": mix, "ranks": ranks, **row}
        for mix in ("wlb_llm", "prolong", "lognormal")
        for ranks in RANKS
        for row in compared({**setting(mix, ranks), "jitter": JITTER}, POLICIES)
    ]


def sync() -> list[dict[str, Any]]:
    """The same where ranks meet in every micro-batch."""
    return [
        {"mix": mix, "ranks": ranks, **row}
        for mix in ("wlb_llm", "prolong")
        for ranks in (8, 64, 1024)
        for row in compared({**setting(mix, ranks), "jitter": JITTER, "sync": "micro_batch"}, POLICIES)
    ]


def gain() -> list[dict[str, Any]]:
    """What balancing gains over padding and over the best tuned static configuration, 7B and 32B models."""
    rows = []
    for model, (cost, flops, tensor_parallel) in MODELS.items():
        for gpus in (64, 1024):
            ranks = gpus // tensor_parallel
            for mix in GAIN_MIXES:
                given = setting(mix, ranks, cost=cost, flops=flops, per_node=8 // tensor_parallel)
                for sync in ("step", "micro_batch"):
                    common = {**given, "jitter": JITTER, "sync": sync}
                    outcomes = {
                        "tuned_static": tuned_static(common),
                        **{o.policy: o for o in simulate(**common, policies=within_reach(POLICIES, common))},
                    }
                    best = outcomes["balanced"]
                    rows += [
                        {"model": model, "gpus": gpus, "mix": mix, "sync": sync, "policy": name}
                        | numbers(outcome)
                        | {"over_balanced": outcome.time_s / best.time_s}
                        for name, outcome in outcomes.items()
                    ]
    return rows


def flexsp() -> list[dict[str, Any]]:
    """FlexSP's setting: 512 sequences of up to 192K on 64 A100-40GB, ZeRO-3, a degree a group or one for all.

    Published (arXiv 2412.01523): at most 1.98 times as fast as Megatron-LM and 1.72 as DeepSpeed's Ulysses,
    whose one degree was tuned. Their corpora are named, their lengths not: percentiles published elsewhere of
    such corpora stand in. 4.71 MB of activations a token leave room for 7,168 tokens beside 1.8 GB of states.
    """
    rows = []
    for mix in ("commoncrawl", "github", "wlb_llm", "prolong"):
        for longest in (98_304, 196_608):
            given = {
                "table_or_lengths": clipped(MIXES[mix](512 * 20, 0), longest).astype(np.int64),
                "topology": Topology(64, ranks_per_node=8),
                "max_tokens": 7168,
                "cost": FLEXSP,
                "cp_degrees": (1, 2, 4, 8, 16, 32, 64),
                "global_batch_size": 512,
                "steps": 20,
                "flops": FLOPS,
                "sync": "micro_batch",
            }
            (ours,) = simulate(**given, policies=["balanced"])
            tuned = tuned_static(given)
            rows.append(
                {"mix": mix, "longest": longest, "balanced_s": ours.mean_s, "tuned_static_s": tuned.mean_s}
                | {"times_as_fast": tuned.time_s / ours.time_s, "published_at_most": 1.98}
            )
    return rows


def noise() -> list[dict[str, Any]]:
    """What is lost to jitter and to one slow rank, which the planner knows of or not."""
    rows = []
    for ranks in (64, 1024):
        slow = np.ones(ranks)
        slow[3] = 0.8
        cases: dict[str, dict[str, Any]] = {
            "quiet": {},
            "jitter 0.01": {"jitter": 0.01},
            "jitter 0.03": {"jitter": 0.03},
            "jitter 0.10": {"jitter": 0.1},
            "rank 3 at 0.8, unknown": {"stragglers": {3: 0.8}},
            "rank 3 at 0.8, known": {"topology": Topology(ranks, ranks_per_node=8, speed=slow)},
        }
        for name, change in cases.items():
            given = {**setting("wlb_llm", ranks), **change}
            outcomes = simulate(**given, policies=["equal_tokens", "static_cp", "balanced"])
            rows += [{"ranks": ranks, "case": name, "policy": o.policy, **numbers(o)} for o in outcomes]
    return rows


def pipeline() -> list[dict[str, Any]]:
    """1F1B walked, beside the formula ``sum + (stages - 1) * largest`` that the planner predicts with.

    64 data ranks and 64 samples for each of them, so that a pipeline has some micro-batches to fill it.
    """
    rows = []
    for stages in (1, 2, 4, 8):
        for last in (1.0, 1.2):
            given = setting("wlb_llm", 64, samples=64, pipeline_stages=stages)
            # An n-th of the stack each; the last stage may carry the vocabulary.
            given["cost"] = CostModel(
                FLEXSP.linear / stages, FLEXSP.quadratic / stages, FLEXSP.fixed / stages, attention="full",
                communication=FLEXSP.communication.slowed(1 / stages),
            )  # fmt: skip
            multipliers = (*[1.0] * (stages - 1), last)
            for outcome in simulate(
                **given, stage_multipliers=multipliers, policies=["equal_tokens", "static_cp", "balanced"]
            ):
                ratio = outcome.step_s / outcome.planned_s
                rows.append(
                    {"stages": stages, "last_stage": last, "policy": outcome.policy, **numbers(outcome)}
                    | {"walk_over_formula": float(ratio.mean()), "least": float(ratio.min())}
                    | {"most": float(ratio.max())}
                )
    return rows


def windows() -> list[dict[str, Any]]:
    """Replicas that each take one window of packed documents, as in DistCA's straggler curve.

    Their curve comes without model, context length and packing, so that these are varied; documents are not
    cut but packed whole, in order. ``balanced`` divides the same documents by predicted time, under the same
    cap, in as many micro-batches as it takes; once on single ranks and once with context parallelism.
    """
    cost = CostModel.from_config(LLAMA_8B, "h200")
    attention = CostModel(0.0, cost.quadratic)
    rows = []
    for mix in ("wlb_llm", "prolong"):
        for window in (65_536, 131_072, 262_144, 524_288):
            lengths = clipped(MIXES[mix](60_000, 0), window).astype(np.int64)
            packs = pack(lengths, window, strategy="next_fit")
            whole = np.array([cost(lengths[packs[p]]).sum() for p in range(len(packs))])
            pairs = np.array([attention(lengths[packs[p]]).sum() for p in range(len(packs))])
            for replicas in (2, 4, 8, 16, 32):
                steps = [
                    np.concatenate([lengths[packs[p]] for p in range(first, first + replicas)])
                    for first in range(0, len(packs) - replicas + 1, replicas)
                ]
                rows.append(
                    {"mix": mix, "window": window, "replicas": replicas, "steps": len(steps)}
                    | {"idle": _waiting(whole, replicas), "idle_attention_alone": _waiting(pairs, replicas)}
                    | {"published_idle": DISTCA_IDLE.get(replicas, "")}
                    | {"idle_balanced": _divided(steps[:20], replicas, window, cost, (1,))}
                    | {"idle_balanced_cp": _divided(steps[:20], replicas, window, cost, (1, 2, 4, 8, 16, 32))}
                )
    return rows


def _divided(
    steps: list[np.ndarray], replicas: int, window: int, cost: CostModel, cp_degrees: tuple[int, ...]
) -> float:
    """Idle share of the balanced policy on the documents of each step."""
    topology, degrees = Topology(replicas), tuple(d for d in cp_degrees if d <= replicas)
    plans = [
        plan_step(step, topology=topology, max_tokens=window, cost=cost, cp_degrees=degrees) for step in steps
    ]
    return 1 - sum(p.rank_time_s.mean() for p in plans) / sum(p.time_s for p in plans)


def _waiting(times: np.ndarray, replicas: int) -> float:
    """Share of the replicas' time in which they wait for the slowest, over whole steps."""
    by_step = times[: times.size // replicas * replicas].reshape(-1, replicas)
    return float(1 - by_step.mean(axis=1).sum() / by_step.max(axis=1).sum())


def gather() -> list[dict[str, Any]]:
    """Share of the time that a CP group spends gathering keys and values, unhidden, at derived rates."""
    rows = []
    for tensor_parallel in (1, 8):
        cost = CostModel.from_config(
            LLAMA_8B, "h200", cp_method="all_gather", tensor_parallel=tensor_parallel,
            ranks_per_node=8 // tensor_parallel,
        )  # fmt: skip
        silent = cost.with_communication(None)
        samples = {
            "one document": np.array([131_072]),
            "wlb_llm": clipped(MIXES["wlb_llm"](60_000, 0), 131_072),
        }
        for name, lengths in samples.items():
            for degree in (2, 4, 8, 16, 32):
                whole, compute = cost(lengths, degree).sum(), silent(lengths, degree).sum()
                rows.append(
                    {"tensor_parallel": tensor_parallel, "lengths": name, "cp_degree": degree}
                    | {"gather_share": float(1 - compute / whole)}
                    | {"published_share": DISTCA_GATHER.get(degree, "")}
                )
    return rows


def wlb_llm() -> list[dict[str, Any]]:
    """WLB-LLM's packing table and breakdown at 7B-128K, see `benchmarks._wlb_llm`."""
    return _wlb_llm.packing_rows()


def wlb_windows() -> list[dict[str, Any]]:
    """WLB-LLM's gain by the length of its windows, 7B."""
    return _wlb_llm.window_rows()


def speed() -> list[dict[str, Any]]:
    """CPU seconds that steps take to simulate, balanced, planning included, and the walk's part of it."""
    rows = []
    for ranks, stages, steps in ((64, 1, 1000), (1024, 1, 1000), (1024, 4, 100), (16_384, 1, 20)):
        given = {
            **setting("wlb_llm", ranks, pipeline_stages=stages),
            "jitter": JITTER,
            "policies": ["balanced"],
        }
        simulate(**{**given, "steps": 1})
        start = time.process_time()
        simulate(**{**given, "steps": steps})
        took = time.process_time() - start
        plan = plan_step(
            given["table_or_lengths"][: given["global_batch_size"]],
            **{name: given[name] for name in ("topology", "max_tokens", "cost", "cp_degrees")},
        )
        pace, rounds = np.ones((ranks, stages)), 20
        walk(plan, pace)
        start = time.process_time()
        for _ in range(rounds):
            walk(plan, pace)
        walked = time.process_time() - start
        rows.append(
            {"ranks": ranks, "stages": stages, "steps": steps, "cpu_s": took}
            | {"cpu_ms_a_step": 1e3 * took / steps, "walk_ms": 1e3 * walked / rounds}
        )
    return rows


def demo() -> list[dict[str, Any]]:
    """The two-rank run of `make demo`: each step's simulated time beside the slower rank's CPU time."""
    results = DEMO / "results.json"
    if not results.exists():
        print(f"demo: left out, {results} is not there; make demo writes it.")
        return []
    run = json.loads(results.read_text())
    lengths = open_source([str(DEMO / "code.parquet"), str(DEMO / "docs.parquet")]).lengths()
    ranks, cost = run["ranks"], CostModel(**run["cost"])
    rows = []
    for trained, policy in (("packed", "equal_samples"), ("balanced", "balanced")):
        simulated_s, measured_s = [], []
        for step in sorted({r["step"] for r in run["records"] if r["step"] >= run["first_step"]}):
            mine = [r for r in run["records"] if r["policy"] == trained and r["step"] == step]
            mine.sort(key=lambda record: record["rank"])
            if trained == "packed":  # a distributed sampler deals the step's samples round
                samples = np.stack([record["samples"] for record in mine], axis=1).ravel()
            else:
                samples = np.concatenate([record["samples"] for record in mine])
            plan = plan_step(
                lengths[samples],
                topology=Topology(ranks),
                max_tokens=run["data"]["max_tokens"],
                cost=cost,
                policy=policy,
            )
            simulated_s.append(walk(plan, np.ones((ranks, 1))).time_s)
            measured_s.append(max(record["cpu_s"] for record in mine))
        ratio = np.array(measured_s) / simulated_s
        rows.append(
            {"policy": trained, "steps": ratio.size}
            | {"simulated_s": float(np.sum(simulated_s)), "measured_cpu_s": float(np.sum(measured_s))}
            | {"measured_over_simulated": float(np.sum(measured_s) / np.sum(simulated_s))}
            | {"median_scatter": float(np.median(np.abs(ratio / np.median(ratio) - 1)))}
            | {"correlation": float(np.corrcoef(simulated_s, measured_s)[0, 1])}
        )
    return rows


def draw(rows: list[dict[str, Any]]) -> None:
    """Tokens/s a GPU of every policy over the size of the cluster, one panel a mix."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    mixes = list(dict.fromkeys(row["mix"] for row in rows))
    figure, panels = plt.subplots(
        1, len(mixes), figsize=(4.2 * len(mixes), 4), sharey=True, layout="constrained"
    )
    for panel, mix in zip(panels, mixes, strict=True):
        mine = [row for row in rows if row["mix"] == mix and not row["error"]]
        for policy in dict.fromkeys(row["policy"] for row in mine):
            line = [row for row in mine if row["policy"] == policy]
            panel.plot(
                [row["ranks"] for row in line],
                [row["tokens_per_s"] / row["ranks"] for row in line],
                "o-" if policy == "balanced" else ".--",
                color="black" if policy == "balanced" else None,
                linewidth=2 if policy == "balanced" else 1,
                label=policy,
            )
        panel.set(title=mix, xscale="log", xlabel="GPUs")
        panel.set_xticks(RANKS, [f"{r:,}" for r in RANKS], rotation=45)
        panel.minorticks_off()
    panels[0].set_ylabel("tokens/s a GPU (simulated, 7B on A100)")
    panels[0].set_ylim(bottom=0)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.savefig(FIGURES / "cluster_scale.png", dpi=130)


SECTIONS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "gain": gain,
    "flexsp": flexsp,
    "scale": scale,
    "sync": sync,
    "noise": noise,
    "pipeline": pipeline,
    "windows": windows,
    "gather": gather,
    "wlb_llm": wlb_llm,
    "wlb_windows": wlb_windows,
    "speed": speed,
    "demo": demo,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", help=f"some of {', '.join(SECTIONS)}; all by default")
    for name in parser.parse_args().sections or SECTIONS:
        if name not in SECTIONS:
            parser.error(f"no section {name!r}; there are {', '.join(SECTIONS)}")
        rows = SECTIONS[name]()
        if rows:
            publish(f"cluster_{name}", rows)
        if name == "scale":
            draw(rows)


if __name__ == "__main__":
    main()
