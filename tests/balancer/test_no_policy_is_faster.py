"""The default is at least as good as every other policy, at its own degree and at any other."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest

from balancer import POLICIES, CostModel, Topology, check_plan, plan_step
from balancer.planning import waves
from balancer.policies import OPEN

OTHERS = sorted(set(POLICIES) - {"balanced"})
FLEXSP = CostModel.preset("flexsp-a100-7b")
COSTS = (FLEXSP, replace(FLEXSP, fixed=0.0), CostModel(1e-4, 1e-9, 0.05), CostModel(0.0, 1e-9))


def settings(seed, ranks, samples_a_rank):
    """Lengths whose longest fills most of a widest group, and a random cluster."""
    rng = np.random.default_rng(seed)
    degrees = [(1,), (1, 2, 4, 8), (2, 4), (1, 2, 3, 6)][rng.integers(4)]
    degrees = tuple(d for d in degrees if d <= ranks)
    cap = int(rng.choice([4096, 16_384]))
    spread, middle = rng.uniform(0.3, 1.5), cap * rng.uniform(0.05, 0.8)
    lengths = rng.lognormal(np.log(middle), spread, ranks * samples_a_rank)
    return np.clip(lengths, 16, cap * degrees[-1] * 3 // 4).astype(np.int64), {
        "topology": Topology(
            ranks,
            pipeline_stages=int(rng.choice([1, 1, 1, 4])),
            speed=None if rng.random() < 0.8 else rng.uniform(0.7, 1.0, ranks),
        ),
        "max_tokens": cap,
        "cost": COSTS[rng.integers(len(COSTS))],
        "cp_degrees": degrees,
    }


def lead_of_others(lengths, step, sync):
    """(How much shorter the best other plan is, at most 0 where none is; our gap). Ours is checked."""
    ours = plan_step(lengths, sync=sync, **step)
    check_plan(ours, lengths, **{name: step[name] for name in ("max_tokens", "cost", "topology")})
    times = []
    for degree in step["cp_degrees"]:
        for policy in OTHERS:
            with contextlib.suppress(ValueError):  # degrees that do not hold all samples
                times.append(
                    plan_step(lengths, sync=sync, policy=policy, **{**step, "cp_degrees": (degree,)}).time_s
                )
    assert times
    lead = 1 - min(times) / ours.time_s
    return lead, ours.gap


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
@pytest.mark.parametrize("seed", range(24))
def test_no_policy_is_faster_on_a_small_step(seed, sync):
    lengths, step = settings(seed, ranks=int(np.random.default_rng(seed).choice([2, 6, 8])), samples_a_rank=8)
    lead, _ = lead_of_others(lengths, step, sync)
    assert lead <= 0


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
@pytest.mark.parametrize(("ranks", "samples_a_rank"), [(8, 32), (16, 64), (64, 16), (64, 64)])
def test_no_policy_is_faster_where_more_than_the_threshold_is_left(ranks, samples_a_rank, sync):
    for seed in range(4):
        lengths, step = settings(100 + seed, ranks, samples_a_rank)
        lead, gap = lead_of_others(lengths, step, sync)
        assert lead <= 0 or gap <= OPEN


def test_many_long_samples_are_better_off_without_narrow_groups():
    rng = np.random.default_rng(0)
    lengths = np.where(
        rng.random(1024) < 0.4, rng.integers(200, 8000, 1024), rng.integers(8000, 100_000, 1024)
    )
    step = {"topology": Topology(64), "max_tokens": 16_384, "cost": FLEXSP, "sync": "micro_batch"}
    plan = plan_step(lengths, cp_degrees=(1, 2, 4, 8), **step)
    assert plan.gap < 0.05
    best = min(plan_step(lengths, cp_degrees=(8,), policy=policy, **step).time_s for policy in OTHERS)
    assert plan.time_s < best


def test_ranks_that_meet_once_a_step_may_run_even_slots(monkeypatch):
    """Few micro-batches of a fixed cost, and a heavy tail."""
    built = []
    divide = waves.divide
    monkeypatch.setattr(waves, "divide", lambda *given, **how: built.append(how) or divide(*given, **how))
    rng = np.random.default_rng(7)
    lengths = np.clip(200 * (1 + rng.pareto(1.1, 1024)), 16, 1 << 20).astype(np.int64)
    cost = CostModel(1e-4, 1e-9, 0.5)
    step = {"topology": Topology(64), "max_tokens": 32_768, "cp_degrees": (1, 2, 4, 8, 16, 32)}
    plan = plan_step(lengths, cost=cost, **step)
    assert built == [{"few_ways": True, "counts": 2}]
    in_slots = plan_step(lengths, cost=cost, sync="micro_batch", **step)
    assert plan.time_s <= in_slots.time_s * 1.005
    built.clear()
    assert plan_step(lengths, cost=replace(cost, fixed=0.0), **step).gap < 0.03
    assert not built
