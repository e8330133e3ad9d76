"""What `evenload plan`, `simulate` and `inspect` print, in a terminal of 80 columns."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from balancer import CostModel, Topology, plan_step, simulate
from balancer.comparison import compare_policies
from balancer.simulation import ModelFlops
from loaders.cli import plan_report, simulate_report
from loaders.packing_job.summary import against_bound

LENGTHS = np.random.default_rng(0).integers(1, 4000, 300)
LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000,
}  # fmt: skip


def printed(show):
    console = Console(width=80, record=True, file=io.StringIO())
    show(console)
    return console.export_text()


def setting(**changes):
    given = {
        "files": ["corpus.parquet"], "lengths_from": "numbers", "ranks": 8, "max_tokens": 4096,
        "cp_degrees": (1, 2), "sync": "step", "global_batch_size": 300, "steps_in_epoch": 1,
    }  # fmt: skip
    return plan_report.Setting(**given | changes)


def admitted(lengths=LENGTHS):
    return plan_report.Admitted(lengths=lengths, num_empty=0, too_long=[])


def columns(line):
    return [cell.strip() for cell in line.replace("┃", "│").strip("│").split("│")]


@pytest.mark.parametrize(
    ("scale", "known"), [(1e-9, False), (1e-3, False), (0.01, True), (1.0, True), (1e3, True), (1e3, False)]
)
def test_the_simulators_table_is_whole(scale, known):
    outcomes = simulate(
        LENGTHS, topology=Topology(8), max_tokens=4096, cost=CostModel(1e-4 * scale, 1e-8 * scale), steps=3,
        cp_degrees=(1, 2), jitter=0.1, flops=ModelFlops.from_config(LLAMA) if known else None,
    )  # fmt: skip
    cluster = {"jitter": 0.1, "stragglers": {}}
    found = simulate_report.Report(setting(), CostModel(1e-4), admitted(), cluster, 1, outcomes)
    text = printed(found.show)
    assert "…" not in text
    (head,) = [line for line in text.splitlines() if line.startswith("policy")]
    assert ("MFU" in columns(head)) == known
    assert ("MFU is unknown" in text) != known
    (unit,) = [line.split()[-1] for line in text.splitlines() if "step times in" in line]
    seconds = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}[unit]
    for outcome in outcomes:
        (row,) = [line for line in text.splitlines() if line.startswith(outcome.policy)]
        cells = dict(zip(columns(head), columns(row), strict=True))
        assert float(cells["step"]) * seconds == pytest.approx(outcome.mean_s, rel=0.01)
        assert float(cells["p99"]) * seconds == pytest.approx(outcome.quantiles_s((0.99,))[0], rel=0.01)


def test_seconds_of_the_generic_cost_are_called_arbitrary_by_simulate():
    options = {"topology": Topology(8), "max_tokens": 4096, "steps": 1, "policies": ["balanced"]}
    for cost, told in ((CostModel.generic(), True), (CostModel(1e-4), False)):
        outcomes = simulate(LENGTHS, cost=cost, **options)
        found = simulate_report.Report(
            setting(), cost, admitted(), {"jitter": 0.0, "stragglers": {}}, 1, outcomes
        )
        assert ("seconds are arbitrary" in printed(found.show)) == told


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_the_planners_table_is_whole(scale):
    cost = CostModel(1e-4 * scale, 1e-8 * scale)
    options = {"topology": Topology(8), "max_tokens": 4096, "cost": cost, "cp_degrees": (1, 2)}
    names = ["balanced", "karmarkar_karp", "padded"]
    outcomes = compare_policies(LENGTHS, [np.arange(LENGTHS.size)], names, **options)
    many = [replace(outcome, tokens=10**12) for outcome in outcomes] if scale == 1.0 else outcomes
    text = printed(lambda console: plan_report.show(console, setting(), cost, admitted(), many))
    assert "…" not in text
    for name in ("step time", "above bound", "imbalance", "tokens/s"):
        assert name in text


def test_the_heading_says_what_a_step_is_and_how_to_set_it():
    assert plan_report.step_line(setting(), 300) == "a step = all 300 samples; --global-batch-size N for less"
    whole = setting(global_batch_size=65_536)
    line = plan_report.step_line(whole, 200_000)
    assert line == "a step = 65,536 of 200,000 samples; --global-batch-size N for less"
    given = plan_report.step_line(setting(global_batch_size=1), 300)
    assert given == "a step = 1 sample of 300 (--global-batch-size)"
    cost = CostModel(1e-4)
    shown = printed(lambda console: plan_report.show(console, setting(), cost, admitted(), []))
    assert "a step = all 300 samples; --global-batch-size N for less" in shown
    found = simulate_report.Report(setting(), cost, admitted(), {"jitter": 0.0, "stragglers": {}}, 1, ())
    assert "a step = all 300 samples; --global-batch-size N for less" in printed(found.show)


def test_one_of_a_kind_is_not_called_many():
    alone = setting(ranks=1, cp_degrees=(1,), global_batch_size=1)
    refused = replace(admitted(np.array([7])), too_long=[("corpus.npy, row 1", 1, 9000)])
    cost = CostModel(1e-4)
    text = printed(lambda console: plan_report.show(console, alone, cost, refused, []))
    assert "1 rank of 4,096 tokens" in text
    assert "a step = all 1 sample;" not in text
    for wrong in ("1 ranks", "1 samples", "1 steps"):
        assert wrong not in text


@pytest.mark.parametrize(("ranks", "samples", "scale"), [(4, 40, 1e-9), (16, 30_000, 1.0), (300, 900, 1e5)])
def test_a_plans_table_is_whole(ranks, samples, scale):
    lengths = np.random.default_rng(1).integers(1, 8000, samples)
    plan = plan_step(
        lengths, topology=Topology(ranks), max_tokens=16_384, cost=CostModel(1e-4 * scale, 1e-8 * scale),
        cp_degrees=(1, 2),
    )  # fmt: skip
    text = printed(lambda console: console.print(plan.table()))
    assert "…" not in text
    rows = [line for line in text.splitlines() if line.startswith("│")]
    assert len(rows) == min(ranks, 16) + (ranks > 16)  # no row takes two lines
    assert "batches" in text


def test_packs_are_held_against_what_no_packing_can_beat():
    assert against_bound(136, 0) == "no packing has fewer"
    assert against_bound(136, 2) == "2 more than 136, below which no packing can go"
