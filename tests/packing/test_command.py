"""``python -m packing``."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packing import pack
from packing.__main__ import main


@pytest.fixture
def lengths_file(tmp_path):
    lengths = np.random.default_rng(0).integers(0, 300, 500)
    pq.write_table(pa.table({"id": range(500), "length": lengths}), tmp_path / "lengths.parquet")
    return tmp_path / "lengths.parquet", lengths


def test_the_plan_holds_every_sample_and_says_how_it_was_made(lengths_file, capsys):
    path, lengths = lengths_file
    plan_file = path.with_name("plan.parquet")
    assert (
        main([str(path), "-o", str(plan_file), "--max-tokens", "256", "--oversize", "split", "--seed", "3"])
        == 0
    )
    plan = pq.read_table(plan_file)
    packs = pack(lengths, 256, oversize="split", seed=3)
    assert plan.column("samples").to_pylist() == [group.tolist() for group in packs]
    assert plan.column("num_tokens").to_pylist() == packs.num_tokens.tolist()
    assert [sum(row) for row in plan.column("lengths").to_pylist()] == packs.num_tokens.tolist()
    facts = json.loads(plan.schema.metadata[b"evenload"])
    assert facts["counts"] == dict(packs.counts)
    assert facts["lower_bound"] <= facts["packs"] == len(packs)
    assert f"{len(packs):,} packs of 256 tokens" in capsys.readouterr().err
    assert [file.name for file in path.parent.iterdir() if file.suffix == ".tmp"] == []


def test_a_plan_is_not_overwritten_unasked(lengths_file, capsys):
    path, _ = lengths_file
    plan_file = path.with_name("plan.parquet")
    plan_file.write_text("mine")
    command = [str(path), "-o", str(plan_file), "--max-tokens", "300"]
    assert main(command) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert plan_file.read_text() == "mine"
    assert main([*command, "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-tokens", "100"], "lengths must be at most 100 tokens"),
        (["--max-tokens", "300", "--column", "tokens"], "it has id, length. Name it with --column"),
    ],
)
def test_errors_are_a_sentence_on_stderr(lengths_file, capsys, options, message):
    assert main([str(lengths_file[0]), *options]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert message in err


def test_files_that_are_missing_or_not_parquet_or_have_holes_are_named(tmp_path, capsys):
    (tmp_path / "text.parquet").write_text("no")
    pq.write_table(pa.table({"length": [1, None]}), tmp_path / "holes.parquet")
    for name, message in {"none": "none", "text": "cannot be read", "holes": "first in row 1"}.items():
        assert main([str(tmp_path / f"{name}.parquet"), "--max-tokens", "8"]) == 2
        assert message in capsys.readouterr().err


def test_importing_packing_does_not_load_numba():
    code = "import packing, sys; sys.exit('numba' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
