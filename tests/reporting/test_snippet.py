"""The code on the page runs as it is pasted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import loaders
from balancer import CostModel, Topology
from loaders.cli.app import app
from loaders.reporting.snippet import cost_code, source_code
from tests.reporting.cases import LLAMA, Page


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for name in ("a", "b"):
        rows = [list(range(int(n))) for n in draw.integers(1, 300, 60)]
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps({"input_ids": row}) + "\n" for row in rows)
        )
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    CostModel(1e-4, 1e-8, 0.01, source="measured here", degrees=(1,)).save(tmp_path / "cost.json")
    return tmp_path


MODEL = ("--model", "config.json")


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--cost", "cost.json"),
        ("--cost", "cost.json", *MODEL),
        ("--cost", "1e-4,1e-8,0.01"),
        ("--cost", "flexsp-a100-7b"),
        (*MODEL, "--gpu", "a100", "--recompute", "full"),
        (*MODEL, "--gpu", "165e12,25e9,12.5e9", "--tensor-parallel", "8"),
    ],
)
def test_the_pasted_code_makes_the_loader_of_the_page(folder, monkeypatch, options):
    arguments = ("a.jsonl", "b.jsonl", "--ranks", "2", "--max-tokens", "512", "--cp-degrees", "1,2")
    few = ("--steps", "2", "--search-steps", "1", "--jitter", "0", "--json", "--out", "page.html")
    result = CliRunner().invoke(app, ["report", *arguments, *options, *few])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout[result.stdout.index("{\n") :])
    (code,) = [text for text in Page((folder / "page.html").read_text()).texts if "DataLoader(" in text]
    made = {}

    class OnTwoRanks(loaders.DataLoader):
        def __init__(self, *given, **named):
            made.update(named)
            super().__init__(*given, **named, topology=Topology(2), rank=0)

    monkeypatch.setattr(loaders, "DataLoader", OnTwoRanks)
    names = {}
    exec(code, names)
    assert made["max_tokens"] == said["recommended"]["setting"]["max_tokens"]
    assert made["sync"] == said["recommended"]["setting"]["sync"]
    for name in ("linear", "quadratic", "fixed"):
        assert getattr(made["cost"], name) == said["cost"][name]
    if "--model" in options:
        assert made["cost"].communication is not None
    assert len(names["loader"]) > 0
    assert names["loader"].step(0).plan.time_s > 0


def test_samples_that_lie_elsewhere_are_not_opened_as_if_they_were_there():
    assert source_code(["lengths.npy"], "numbers").endswith("# the samples whose lengths are in lengths.npy")
    assert source_code(["a.parquet"], "column 'n'", column="t", length="n") == (
        'open_source("a.parquet", column="t", length="n")'
    )


def test_options_of_the_model_that_say_nothing_are_left_out():
    code = cost_code(None, "config.json", "h100", recompute="none", tensor_parallel=1, ranks_per_node=1)
    assert code == 'CostModel.from_config("config.json", gpu="h100", ranks_per_node=1)'
