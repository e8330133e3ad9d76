"""Memory of worker processes does not grow with steps, nor with their number (case U27, scaled down)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaders import DataLoader, open_source

ROWS = 100_000


def proportional_mib(workers):
    """Proportional set sizes of this process and some of its children, which count shared pages once."""
    own = [Path(f"/proc/{pid}/smaps_rollup") for pid in ("self", *(worker.pid for worker in workers))]
    return sum(int(re.search(r"^Pss:\s+(\d+) kB", path.read_text(), re.MULTILINE)[1]) for path in own) / 1024


@pytest.fixture
def pattern(tmp_path):
    draw = np.random.default_rng(0)
    for number in range(4):
        ids = [draw.integers(0, 50_000, n).tolist() for n in draw.integers(5, 40, ROWS // 4)]
        names = [f"{number}-{row:0195d}" for row in range(ROWS // 4)]
        pq.write_table(pa.table({"input_ids": ids, "id": names}), tmp_path / f"{number}.parquet")
    return str(tmp_path / "*.parquet")


def epoch(pattern, num_workers):
    """(MiB after a tenth of the epoch, MiB at its end); every sample's id is looked at."""
    source = open_source(pattern, carry=["id"])
    loader = DataLoader(source, batch_size=500, max_tokens=16_384, shuffle=True, num_workers=num_workers)
    sizes, seen = {}, 0
    batches = iter(loader)
    for batch in batches:
        seen += sum(len(name) > 190 for name in batch.columns["id"])
        if batch.step in (len(loader) // 10, len(loader) - 1):
            workers = batches._reading._workers
            assert len(workers) == num_workers
            sizes.setdefault(batch.step, proportional_mib(workers))
    assert seen == ROWS
    return tuple(sizes.values())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's smaps_rollup")
def test_u27_workers_hold_no_more_at_the_end_of_an_epoch_and_share_what_they_read(pattern):
    early, late = epoch(pattern, 1)
    assert late <= max(1.1 * early, early + 200)
    early_of_four, late_of_four = epoch(pattern, 4)
    assert late_of_four <= max(1.1 * early_of_four, early_of_four + 200)
    # measured: 1.40 times, 65 MiB a worker, nearly all of it its interpreter; room for other builds of torch
    assert late_of_four <= 1.5 * late + 100
