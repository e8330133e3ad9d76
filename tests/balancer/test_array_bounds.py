"""Kernels check nothing inside; here numba checks every index for them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from balancer import CostModel, Topology, plan_step

ROOT = Path(__file__).resolve().parents[2]


def plan_random_steps(count):
    """How many of ``count`` random steps, over all options, could be planned."""
    rng = np.random.default_rng(0)
    planned = 0
    for _ in range(count):
        ranks = int(rng.integers(1, 13))
        degrees = [d for d in (1, 2, 3, 4, 8) if d <= ranks and rng.random() < 0.7] or [1]
        nodes = [d for d in range(1, ranks + 1) if ranks % d == 0]
        lengths = rng.integers(1, 500 if rng.random() < 0.5 else 60, int(rng.integers(1, 80)))
        try:
            plan = plan_step(
                lengths,
                topology=Topology(
                    ranks,
                    ranks_per_node=None if rng.random() < 0.5 else int(rng.choice(nodes)),
                    speed=None if rng.random() < 0.6 else rng.uniform(0.3, 2, ranks),
                    pipeline_stages=int(rng.choice([1, 1, 3])),
                ),
                max_tokens=rng.integers(1, 400, ranks) if rng.random() < 0.6 else int(rng.integers(50, 400)),
                cost=CostModel(linear=1e-3, quadratic=1e-6, fixed=float(rng.choice([0, 1e-3, 0.3]))),
                cp_degrees=degrees,
                sync=str(rng.choice(["step", "micro_batch"])),
                micro_batches=None if rng.random() < 0.8 else int(rng.integers(1, 9)),
            )
        except ValueError:  # some of these fit no allowed degree; what is refused is tested elsewhere
            continue
        assert sorted(plan.order.tolist()) == list(range(lengths.size))
        planned += 1
    return planned


@pytest.mark.slow
def test_no_kernel_of_the_planner_reads_or_writes_outside_its_arrays(tmp_path):
    code = "from tests.balancer.test_array_bounds import plan_random_steps as run; print(run(4000))"
    checked = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=checked, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 2000
