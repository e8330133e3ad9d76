"""The page on the cost model runs as it stands, and its tables hold."""

import re
from pathlib import Path

import numpy as np
import pytest

from balancer.cost import GPUS, attended_pairs

PAGE = (Path(__file__).parents[2] / "docs" / "cost-model.md").read_text(encoding="utf-8")


def test_the_examples_run_one_after_the_other():
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) >= 5
    for block in blocks:
        exec(compile(block, "docs/cost-model.md", "exec"), names)
    assert names["cost"].report.max_error < 0.05
    assert names["step"].imbalance["vision"] == pytest.approx(4 / 3)


def test_the_table_of_patterns_is_right():
    rows = re.findall(r"^\| `([^`]+)`[^|]*\| ([\d,]+) \|$", PAGE, flags=re.MULTILINE)
    assert len(rows) == 8
    for pattern, pairs in rows:
        assert attended_pairs(np.array([2048]), pattern)[0] == int(pairs.replace(",", "")), pattern


def test_the_table_of_gpus_is_right():
    rows = re.findall(
        r"^\| (`[^|]+) \| ([\d,]+) TFLOP/s \| (\d+) GB/s \| (\d+) GB/s \|$", PAGE, flags=re.MULTILINE
    )
    named = [(name, *row[1:]) for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert {name for name, *_ in named} == set(GPUS)
    for name, flops, intra, inter in named:
        gpu = GPUS[name]
        stated = (float(flops.replace(",", "")) * 1e12, float(intra) * 1e9, float(inter) * 1e9)
        assert (gpu.flops, gpu.intra_node, gpu.inter_node) == stated
