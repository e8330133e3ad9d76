"""Megatron-core reads what ``--format megatron`` writes: its own reader, from its own package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from loaders.sources import open_source
from tests.loaders.packing_runs import documents, pack, write_parquet

READ = """
import json, sys
from megatron.core.datasets.indexed_dataset import IndexedDataset
data = IndexedDataset(sys.argv[1])
print(json.dumps({
    "sequences": [data[number].tolist() for number in range(len(data))],
    "documents": data.document_indices.tolist(),
}))
"""


@pytest.mark.slow
def test_megatron_core_reads_samples_as_sequences_and_packs_as_documents(tmp_path: Path) -> None:
    library = tmp_path / "library"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(library)]
    if subprocess.run([*install, "megatron-core==0.16.1"], check=False).returncode:
        pytest.skip("megatron-core cannot be installed here")
    source = write_parquet(tmp_path / "a.parquet", documents(200))
    manifest = pack([source], tmp_path / "out", format="megatron")
    environment = {**os.environ, "PYTHONPATH": str(library), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", READ, str(tmp_path / "out" / "train")]
    told = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    found = json.loads(told.splitlines()[-1])
    assert sorted(found["sequences"]) == sorted(documents(200))
    assert len(found["documents"]) == manifest["num_packs"] + 1
    lengths = [len(sequence) for sequence in found["sequences"]]
    totals = np.add.reduceat(lengths, found["documents"][:-1])
    assert totals.max() <= 128
    ours = open_source(tmp_path / "out")
    assert ours.lengths().tolist() == lengths
    assert ours.read(np.arange(len(ours))).input_ids.tolist() == [
        t for row in found["sequences"] for t in row
    ]
