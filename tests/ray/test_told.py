"""What a user sees of an error in another process: its place, then one sentence, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed")

ROOT = Path(__file__).resolve().parents[2]


def told(*arguments):
    command = [sys.executable, "-m", "tests.ray.errors_main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr


def test_broken_rows_are_told_in_one_sentence_that_stands_last():
    stderr = told("rows")
    assert "Unhandled error" not in stderr
    [sentence] = [line for line in stderr.splitlines() if "stage read" in line]
    assert stderr.rstrip().splitlines()[-1] == sentence
    assert "ValueError: no such picture. Repair the sample" in sentence
    assert 'raise ValueError("no such picture")' in stderr  # where it was
    assert "ray::" not in stderr


def test_a_class_that_the_cluster_cannot_import_is_named_with_the_ways_out(tmp_path):
    stderr = told("module", str(tmp_path))
    assert "Unhandled error" not in stderr
    last = stderr.rstrip().splitlines()[-1]
    assert "own_source.OwnSource cannot be loaded on" in last
    assert "importable on all of its nodes" in last
    assert "runtime_env" in last
    assert stderr.count("cannot be loaded on") == 1
