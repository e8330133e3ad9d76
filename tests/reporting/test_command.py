"""`evenload report` from files to the page."""

import json
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from balancer import CostModel, Topology, simulate
from balancer.cost import PRESETS
from loaders.cli.app import app
from tests.reporting.cases import LLAMA, Page, some_lengths

RUN = CliRunner(env={"COLUMNS": "180"})
FAST = ("--steps", "3", "--search-steps", "1")


@pytest.fixture
def lengths_file(tmp_path):
    np.save(tmp_path / "lengths.npy", some_lengths())
    return tmp_path / "lengths.npy"


@pytest.fixture
def config_file(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path / "config.json"


def run(path, *arguments):
    return RUN.invoke(
        app, ["report", str(path), "--ranks", "4", "--max-tokens", "4Ki", *FAST, *map(str, arguments)]
    )


def data_of(page):
    text = page.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="numbers">(.*?)</script>', text, re.DOTALL)[1])


def test_the_page_and_the_json_say_the_same(lengths_file, tmp_path):
    out = tmp_path / "deep" / "page.html"
    result = run(lengths_file, "--out", out, "--json", "--jitter", 0.05)
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert data == data_of(out)
    (outcome,) = simulate(
        some_lengths(), topology=Topology(4, ranks_per_node=8), max_tokens=4096, cost=CostModel.generic(),
        policies=["equal_samples"], steps=3, global_batch_size=64, cp_degrees=(1, 2, 4), jitter=0.05,
    )  # fmt: skip
    row = next(row for row in data["rows"] if row["name"] == "equal_samples")
    assert row["numbers"]["step_time_s"] == outcome.mean_s
    assert data["given"] == {"max_tokens": 4096, "cp_degrees": [1, 2, 4], "sync": "step"}
    assert Page(out.read_text(encoding="utf-8")).text().count("arbitrary") == 1


def test_without_options_the_page_lies_here(lengths_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(lengths_file)
    assert result.exit_code == 0
    assert "recommended: " in result.stdout
    assert data_of(tmp_path / "report.html")["files"] == [str(lengths_file)]
    monkeypatch.chdir(lengths_file.parent)
    (tmp_path / "report.html").unlink()
    assert run(lengths_file, "--json").exit_code == 0
    assert not (tmp_path / "report.html").exists()


def test_tables_of_tokens_and_names_of_what_cannot_fit(tmp_path):
    rows = [list(range(n)) for n in (5, 3000, 900, 40_000, 0)]
    pq.write_table(pa.table({"input_ids": rows * 4}), tmp_path / "corpus.parquet")
    data = json.loads(run(tmp_path / "corpus.parquet", "--json", "--cp-degrees", "1,2").stdout)
    profile = data["profile"]
    assert (profile["refused"], profile["empty"], data["admitted"]) == (4, 4, 12)
    assert profile["refused_listed"][0] == [f"{tmp_path}/corpus.parquet, row 3", 3, 40_000]


def test_a_model_chooses_what_memory_needs(lengths_file, config_file):
    data = json.loads(run(lengths_file, "--json", "--model", config_file).stdout)
    # 8 billion weights on four H100: whole weights leave no room without recomputing, sharded ones do.
    assert (data["given"]["sync"], data["recompute"]) == ("micro_batch", "none")
    assert data["rows"][-1]["numbers"]["mfu"] > 0.05
    assert data["memory"]["gpu_bytes"] == 80e9
    small = ("--json", "--model", config_file, "--gpu-memory", "60G")
    assert json.loads(run(lengths_file, *small).stdout)["recompute"] == "full"
    named = (*small, "--sync", "step", "--recompute", "none", "--tensor-parallel", 2)
    data = json.loads(run(lengths_file, *named).stdout)
    assert (data["given"]["sync"], data["recompute"]) == ("step", "none")
    assert data["cluster"]["ranks_per_node"] == 4


def test_a_cap_that_memory_does_not_hold_is_pointed_out(lengths_file, config_file, tmp_path):
    out = tmp_path / "page.html"
    options = ("--model", config_file, "--gpu-memory", "20G", "--recompute", "none", "--out", out)
    assert run(lengths_file, *options).exit_code == 0
    assert "By estimate 4,096 tokens on a rank take" in Page(out.read_text(encoding="utf-8")).text()


@pytest.mark.parametrize("cost", ["1e-4,1e-8,0.02", *PRESETS[:2]])
def test_costs_are_taken_as_everywhere(lengths_file, cost):
    assert json.loads(run(lengths_file, "--json", "--cost", cost).stdout)["rows"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--sync", "often"], "--sync must be one of step, micro_batch, got 'often'"),
        (["--recompute", "some"], "--recompute must be one of none, attention, full"),
        (["--cp-degrees", "1,8"], "cp_degrees"),
        (["--cp-degrees", "x"], "--cp-degrees must be whole numbers"),
        (["--cost", "cheap"], "--cost must be a preset"),
        (["--model", "missing.json"], "missing.json"),
        (["--max-tokens", "many"], "--max-tokens must be an amount"),
    ],
)
def test_bad_options_get_a_sentence(lengths_file, arguments, what):
    result = run(lengths_file, *arguments)
    assert result.exit_code == 1
    assert what in " ".join(result.stderr.split())


def test_a_missing_file_and_an_empty_one_are_told(tmp_path):
    missing = run(tmp_path / "nothing.npy")
    assert missing.exit_code == 1
    assert "nothing.npy" in missing.stderr
    np.save(tmp_path / "empty.npy", np.zeros(0, np.int64))
    assert "no samples with tokens" in run(tmp_path / "empty.npy").stderr


def test_the_command_loads_nothing_heavy_before_it_runs():
    code = (
        "import sys, loaders.cli.report; print([m for m in ('numpy', 'numba', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
