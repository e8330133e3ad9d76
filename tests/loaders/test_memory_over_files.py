"""Memory after the last of many files is that after a tenth of them (case U28, scaled down)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaders import DataLoader, open_source
from loaders.sources import chunked
from loaders.sources.cache import BoundedCache

FILES, ROWS, LENGTH = 200, 512, 512


def own_mib(pids):
    """Memory of some processes without pages of mapped files, which the system takes back at will."""
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    kinds = ("Pss_Anon", "Pss_Shmem")
    return (
        sum(int(re.search(rf"^{kind}:\s+(\d+) kB", text, re.M)[1]) for text in texts for kind in kinds) / 1024
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's smaps_rollup")
def test_u28_memory_does_not_grow_from_file_to_file(tmp_path, monkeypatch):
    """200 files of a megabyte, one after the other, by workers that may keep 8 MiB of decoded ones.

    By default they keep 1 GiB, and these files together take less than half of that: they would all stay.
    """
    draw = np.random.default_rng(0)
    offsets = pa.array(np.arange(0, ROWS * LENGTH + 1, LENGTH, dtype=np.int32))
    for number in range(FILES):
        tokens = pa.array(draw.integers(0, 50_000, ROWS * LENGTH).astype(np.int32))
        lists = pa.ListArray.from_arrays(offsets, tokens)
        pq.write_table(pa.table({"input_ids": lists}), tmp_path / f"{number:03}.parquet", compression="none")
    monkeypatch.setattr(chunked, "DECODED", BoundedCache(8 << 20, lambda chunk: chunk.size_bytes))
    source = open_source(str(tmp_path / "*.parquet"), cache=False)
    loader = DataLoader(
        source, batch_size=256, max_tokens=16_384, num_workers=3, multiprocessing_context="fork"
    )  # fmt: skip
    sizes, seen = [], 0
    batches = iter(loader)
    for batch in batches:
        seen += len(batch.sample_ids)
        if batch.last_in_step and seen in (20 * ROWS, FILES * ROWS):
            sizes.append(own_mib(["self", *(worker.pid for worker in batches._reading._workers)]))
    assert seen == FILES * ROWS
    early, late = sizes
    assert late <= 1.1 * early
