import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from balancer import POLICIES, CostModel, Topology, plan_step, simulate
from balancer.comparison import shuffled_steps
from balancer.simulation import ModelFlops
from loaders.cli.app import app
from loaders.cli.simulate import parse_stragglers

RUN = CliRunner(env={"COLUMNS": "180"})
LENGTHS = [700, 30, 30, 500, 0, 90, 1500, 42, 1024, 8]
LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000,
}  # fmt: skip


@pytest.fixture
def lengths_file(tmp_path):
    path = tmp_path / "lengths.parquet"
    pq.write_table(pa.table({"num_tokens": LENGTHS}), path)
    return path


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return path


def run(path, *arguments):
    return RUN.invoke(
        app, ["simulate", str(path), "--ranks", "2", "--max-tokens", "1Ki", *map(str, arguments)]
    )


def test_json_holds_what_the_simulator_says(lengths_file):
    arguments = ("--cost", "1e-4,1e-7,0.01", "--jitter", 0.1, "--straggler", "1:0.5", "--steps", 6)
    result = run(lengths_file, *arguments, "--global-batch-size", 3, "--overhead", 0.5, "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    kept = np.array([n for n in LENGTHS if 0 < n <= 1024])
    outcomes = simulate(
        kept, topology=Topology(2), max_tokens=1024, cost=CostModel(1e-4, 1e-7, 0.01), steps=6,
        global_batch_size=3, jitter=0.1, stragglers={1: 0.5}, overhead_s=0.5,
    )  # fmt: skip
    assert list(report["policies"]) == [outcome.policy for outcome in outcomes] == list(POLICIES)
    for outcome in outcomes:
        said = report["policies"][outcome.policy]
        assert said["steps"] == 6
        assert said["step_time_s"] == outcome.mean_s
        assert said["step_time_p95_s"] == outcome.quantiles_s()[2]
        assert said["idle"] == outcome.idle
        assert said["mfu"] is None
        assert said["memory"] == outcome.memory.max()
    assert (report["jitter"], report["stragglers"], report["steps_in_epoch"]) == (0.1, {"1": 0.5}, 3)
    assert report["cannot_fit"][0]["row"] == 6


def test_a_model_gives_cost_and_mfu(lengths_file, config_file):
    options = ("--model", config_file, "--gpu", "a100", "--policies", "balanced", "--json", "--steps", 1)
    report = json.loads(run(lengths_file, *options).stdout)
    assert "on a100" in report["cost"]["source"]
    kept = np.array([n for n in LENGTHS if 0 < n <= 1024])[shuffled_steps(8, 8)[0]]
    balanced = report["policies"]["balanced"]
    flops = ModelFlops.from_config(LLAMA, "a100")
    assert balanced["mfu"] == pytest.approx(flops(kept) / (2 * 312e12 * balanced["step_time_s"]))
    given = json.loads(run(lengths_file, *options, "--cost", "1e-3").stdout)
    assert given["cost"]["linear"] == 1e-3
    assert 0 < given["policies"]["balanced"]["mfu"] < balanced["mfu"]


def test_stages_are_walked(lengths_file):
    options = ("--cost", "1e-4", "--pipeline-stages", 2, "--policies", "balanced", "--json")
    even = json.loads(run(lengths_file, *options).stdout)["policies"]["balanced"]
    uneven = json.loads(run(lengths_file, *options, "--stage-multipliers", "1,2").stdout)["policies"][
        "balanced"
    ]
    assert even["gpus"] == 4
    assert even["step_time_s"] < uneven["step_time_s"]


def test_the_table_has_every_policy_the_cluster_and_what_is_unknown(lengths_file, config_file):
    result = run(lengths_file, "--jitter", "0.1", "--straggler", "0:0.5", "--straggler", "1:0.9")
    assert result.exit_code == 0
    for word in (
        *POLICIES,
        "p95",
        "unknown",
        "rank 0 at 0.5, rank 1 at 0.9",
        "MFU is unknown",
        "1,500 tokens",
    ):
        assert word in result.stdout, word
    assert "…" not in result.stdout, "a number is cut off"
    assert "unknown" not in run(lengths_file, "--model", config_file).stdout


def test_a_policy_that_cannot_plan_says_why_and_fails_alone(lengths_file, monkeypatch):
    def refuse(lengths, *, policy, **options):
        if policy == "balanced":
            raise ValueError("no plan today")
        return plan_step(lengths, policy=policy, **options)

    monkeypatch.setattr("balancer.simulation.run.plan_step", refuse)
    alone = run(lengths_file, "--policies", "balanced")
    assert alone.exit_code == 1
    assert "balanced: no plan today" in alone.stdout
    assert run(lengths_file, "--policies", "balanced,padded").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--sync", "sometimes"], "--sync must be one of step, micro_batch, got 'sometimes'"),
        (["--straggler", "1"], "--straggler must be RANK:SPEED"),
        (["--straggler", "9:0.5"], "ranks 0..1, got 9"),
        (["--stage-multipliers", "1,x"], "--stage-multipliers must be numbers"),
        (["--stage-multipliers", "1,2"], "must hold 1 finite positive"),
        (["--policies", "fair"], "got 'fair'"),
        (["--model", "missing.json"], "missing.json"),
        (["--cost", "fast"], "--cost must be a preset"),
    ],
)
def test_bad_options_get_a_sentence(lengths_file, arguments, what):
    result = run(lengths_file, *arguments)
    assert result.exit_code == 1
    assert what in " ".join(result.stderr.split())


def test_a_model_that_is_not_json_is_named(lengths_file, tmp_path):
    (tmp_path / "config.json").write_text("llama")
    result = run(lengths_file, "--model", tmp_path)
    assert result.exit_code == 1
    assert "is not JSON" in result.stderr


def test_an_unknown_gpu_is_refused_without_a_model_too(lengths_file):
    result = run(lengths_file, "--gpu", "h1000")
    assert result.exit_code == 1
    assert "--gpu must be one of a100, h100" in result.stderr


def test_a_step_larger_than_the_file_is_shown_as_it_is(lengths_file):
    result = run(lengths_file, "--global-batch-size", "5000")
    assert "5,000 samples" not in result.stdout


def test_stragglers_are_parsed():
    assert parse_stragglers(["17:0.5", "3:1.2"]) == {17: 0.5, 3: 1.2}
