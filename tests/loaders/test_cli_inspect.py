"""`evenload inspect`: what a loader would do with data, before it is read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from balancer import CostModel, Topology
from loaders import DataLoader, Mixture
from loaders.cli.app import app

ROOT = Path(__file__).parents[2]
RUN = CliRunner()


def write(path, lengths):
    path.write_text("".join(json.dumps({"input_ids": list(range(n))}) + "\n" for n in lengths))


@pytest.fixture
def mixture(tmp_path):
    draw = np.random.default_rng(0)
    lengths = {"web": draw.integers(0, 80, 120), "code": draw.integers(1, 300, 40)}
    for name, own in lengths.items():
        write(tmp_path / f"{name}.jsonl", own.tolist())
    path = tmp_path / "mixture.yaml"
    path.write_text(
        "by: tokens\nsources:\n"
        f"  - {{name: web, path: {tmp_path}/web.jsonl, weight: 0.7}}\n"
        f"  - {{name: code, path: {tmp_path}/code.jsonl, weight: 0.3}}\n"
    )
    return path, lengths


def told(*arguments):
    result = RUN.invoke(app, ["inspect", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_it_tells_what_the_loader_does(mixture):
    path, lengths = mixture
    found = told(
        path, "--max-tokens", "512", "--ranks", 4, "--cp-degrees", "1,2", "--batch-size", 8, "--worst", 2
    )
    loader = DataLoader(
        Mixture.from_yaml(str(path)),
        batch_size=8,
        shuffle=True,
        max_tokens=512,
        cp_degrees=(1, 2),
        cost=CostModel.preset("generic"),
        topology=Topology(ranks=4),
        rank=0,
    )
    assert found["steps_in_epoch"] == len(loader)
    for source in found["sources"]:
        own = lengths[source["name"]]
        assert source["rows"] == own.size
        assert source["usable"] == np.count_nonzero(own)
        assert source["counts"]["empty"] == np.count_nonzero(own == 0)
        assert source["tokens"] == own.sum()
        assert source["longest"] == own.max()
        # half of the rows, and no fewer, are at most as long
        assert np.mean(own[own > 0] <= source["p50"]) >= 0.5
        assert np.mean(own[own > 0] < source["p50"]) <= 0.5
    shares = {source["name"]: source["token_share"] for source in found["sources"]}
    assert shares["web"] == pytest.approx(0.7, abs=0.02)
    for number, step in enumerate(found["steps"]):
        plan, table = loader.step(number).plan, loader.step(number).table
        assert step["samples"] == 32
        assert step["tokens"] == table.num_tokens.sum()
        assert step["gap"] == plan.gap
        assert step["rank_time_s"] == plan.rank_time_s.tolist()
        assert sum(step["by_source"].values()) == 32
        assert sum(map(int, step["cp_degrees"].values())) == step["micro_batches"] == len(plan.micro_batches)
    heavy = loader.worst(2)
    assert [one["tokens"] for one in found["worst"]] == [one.tokens for one in heavy]
    assert len(found["worst"][0]["sample_ids"]) == heavy[0].num_samples


def test_the_tables_name_sources_ranks_and_the_heaviest(mixture):
    path, _ = mixture
    result = RUN.invoke(app, ["inspect", str(path), "--max-tokens", "512", "--ranks", "2", "--worst", "1"])
    assert result.exit_code == 0, result.output
    for text in ("web", "code", "Step 0", "Step 1", "imbalance", "Heaviest micro-batches"):
        assert text in result.stdout


def shown(*arguments):
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["inspect", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_nothing_is_cut_in_a_terminal_of_80_columns(mixture, tmp_path):
    path, _ = mixture
    assert "…" not in shown(path, "--max-tokens", "512", "--ranks", 20, "--worst", 2)
    folder = tmp_path / "a-folder-with-a-name-that-is-long" / "and-another-one-within-it"
    folder.mkdir(parents=True)
    files = [folder / f"part-{number:05d}-of-00003-of-a-corpus-with-a-long-name.jsonl" for number in range(3)]
    for file in files:
        write(file, [1, 90_000])
    assert "…" not in shown(*files, "--max-tokens", "100k", "--ranks", 2, "--worst", 2)


def test_a_source_of_many_files_is_named_once_and_its_samples_by_file_and_row(tmp_path):
    files = [tmp_path / f"part-{number}.jsonl" for number in range(3)]
    for number, file in enumerate(files):
        write(file, [7, 100 + number, 9])
    text = shown(*files, "--max-tokens", "128", "--worst", 1)
    assert text.count("part-0.jsonl and 2") == 1
    joined = text.replace("\n", "")
    assert "102 tokens: " in joined
    assert f"{files[2]}, line 2" in joined
    [heavy] = told(*files, "--max-tokens", "128", "--worst", 1)["worst"]
    assert heavy["longest"][0]["origin"].startswith(f"{files[2]}, line 2 ")
    assert [one["tokens"] for one in heavy["longest"]] == [102, 9, 9]


def test_seconds_of_the_generic_cost_are_called_arbitrary(mixture):
    path, _ = mixture
    assert "seconds are arbitrary" in shown(path, "--max-tokens", "512")
    assert "seconds are arbitrary" not in shown(path, "--max-tokens", "512", "--cost", "1e-4")


def test_files_without_a_mixture_are_one_source(tmp_path):
    write(tmp_path / "a.jsonl", [3, 4])
    write(tmp_path / "b.jsonl", [5])
    found = told(tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--max-tokens", "16", "--no-shuffle", "--eos", 7)
    [source] = found["sources"]
    assert source["rows"] == 3
    assert source["tokens"] == 3 + 4 + 5 + 3  # each sample ends with its own token
    assert found["steps_in_epoch"] == 1


def test_what_cannot_be_held_is_a_sentence(tmp_path):
    write(tmp_path / "a.jsonl", [3, 40])
    result = RUN.invoke(app, ["inspect", str(tmp_path / "a.jsonl"), "--max-tokens", "16"])
    assert result.exit_code == 1
    assert "line 2" in result.output
    assert "Traceback" not in result.output
    left = told(tmp_path / "a.jsonl", "--max-tokens", "16", "--oversize", "drop")
    assert left["sources"][0]["counts"]["dropped"] == 1


def test_help_imports_nothing_heavy():
    code = (
        "import sys, loaders.cli.inspect_data; "
        "print([name for name in ('torch', 'numba', 'datasets', 'pyarrow', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() in ("[]", "['rich']")  # typer may bring rich
