"""``make demo`` in small: the script that users run, with all it writes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_the_demo_leaves_corpus_results_and_pictures(tmp_path):
    command = [sys.executable, str(EXAMPLES / "demo.py"), f"--out={tmp_path}", "--seconds=15"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "evenload over packed" in done.stdout
    found = json.loads((tmp_path / "results.json").read_text())
    assert [row["policy"] for row in found["policies"]] == ["padded", "packed", "balanced"]
    assert len({record["step"] for record in found["records"]}) >= 3
    balanced = found["policies"][-1]
    assert found["epoch"]["plan_s"] > 0
    assert balanced["steps"] >= 2
    for name in ("code.parquet", "docs.parquet", "timeline.png", "loss.png"):
        assert (tmp_path / name).stat().st_size > 1000
