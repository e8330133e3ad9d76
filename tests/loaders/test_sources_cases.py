"""Known ways in which loaders lose, repeat or misread data, on their smallest inputs."""

from __future__ import annotations

import gc
import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from balancer import Topology
from loaders import DataLoader, Mixture, open_source
from loaders.catalog import open_catalog
from loaders.sources import chunked
from loaders.sources.cache import BoundedCache
from tests.loaders.arrays import ArraySource


def write(path: Path, rows: list[Any], kind: pa.DataType | None = None, **more: Any) -> Path:
    columns = {"input_ids": pa.array(rows, pa.list_(pa.int32()) if kind is None else kind), **more}
    pq.write_table(pa.table(columns), path, row_group_size=7)
    return path


# ------------------------------------------------------------------------ U27, U28: memory


def own_mib(process: int) -> float:
    """Memory that a process shares with nobody and has written to."""
    with open(f"/proc/{process}/smaps_rollup") as file:
        fields = dict(line.split(":", 1) for line in file if ":" in line)
    return int(fields["Private_Dirty"].split()[0]) / 1024


def write_arrow(path: Path, count: int) -> Path:
    """So many samples of 1 to 7 tokens."""
    lengths = np.random.default_rng(0).integers(1, 8, count)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.ones(offsets[-1], np.uint16)))
    table = pa.table({"input_ids": lists})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.fixture
def frozen() -> Iterator[None]:
    """What there is now is left alone by the collector, which in a forked worker would copy all of it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_u27_a_workers_memory_does_not_grow_with_the_samples(tmp_path: Path, method: str) -> None:
    held = {}
    for count in (20_000, 20_000, 6_000_000):  # the first one pays for what is imported and compiled
        loader = DataLoader(
            open_source(write_arrow(tmp_path / f"{count}.arrow", count), cache=False),
            batch_size=256,
            shuffle=True,
            max_tokens=4096,
            num_workers=2,
            multiprocessing_context=method,
        )
        batches = iter(loader)
        for _ in range(50):
            next(batches)
        held[count] = max(own_mib(worker.pid) for worker in batches._reading._workers)
        del batches
    assert held[6_000_000] - held[20_000] < 24, held  # an index of 8 bytes a sample would be 46 MiB


def test_u28_decoded_chunks_stay_within_their_budget_file_after_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        write(tmp_path / f"{number:03}.parquet", [[number] * 100] * 70)
    held = BoundedCache[Any](20_000, lambda chunk: chunk.size_bytes)
    monkeypatch.setattr(chunked, "DECODED", held)
    source = open_source(str(tmp_path / "*.parquet"), cache=False)
    totals = []
    for row in range(0, len(source), 35):
        assert source.read(np.array([row])).input_ids[0] == row // 70
        totals.append(sum(chunk.size_bytes for chunk, _ in held._values.values()))
    assert max(totals) <= 20_000
    assert len(held) > 1


def test_u28_a_row_group_beyond_the_cache_is_told_with_the_memory_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.parquet", [list(range(1000))] * 7)
    monkeypatch.setattr(chunked, "DECODED", BoundedCache[Any](1000, lambda chunk: chunk.size_bytes))
    with caplog.at_level(logging.WARNING):
        len(open_source(tmp_path / "a.parquet"))
    assert any("smaller row groups" in record.message for record in caplog.records)


# ------------------------------------------------------------------------ U30, U31: mixtures


def test_u31_how_often_each_source_was_gone_through_is_reported() -> None:
    mixture = Mixture(
        {"a": ArraySource([4] * 10), "b": ArraySource([4] * 40)}, {"a": 1, "b": 1}, by="samples"
    )
    loader = DataLoader(mixture, batch_size=8, max_tokens=64)
    for _ in loader:
        pass
    assert loader.metrics()["epochs_by_source"] == pytest.approx({"a": 4.0, "b": 1.0}, abs=0.11)


# ------------------------------------------------------------------------ U38: resume


def test_u38_resuming_reads_no_more_than_the_buffers_hold() -> None:
    class Costly:
        made = 0

        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, row: int) -> dict[str, Any]:
            Costly.made += 1
            return {"input_ids": [row % 1000]}

    def loader() -> DataLoader[Any]:
        source = open_source(Costly(), length=np.ones(1_000_000, np.int64), labels=False)
        return DataLoader(source, batch_size=64, shuffle=True, max_tokens=64)

    state = loader().state_dict() | {"position": 900_032}
    resumed = loader()
    resumed.load_state_dict(state)
    next(iter(resumed))
    assert 0 < Costly.made < 1000


# ------------------------------------------------------------------------ U40: files and ranks


@pytest.mark.parametrize("sizes", [[1, 10, 100, 3, 0], [114], [7]])
@pytest.mark.parametrize(("ranks", "workers"), [(3, 0), (8, 0), (3, 2)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_u40_every_row_once_whatever_the_number_of_files(
    sizes: list[int], ranks: int, workers: int, shuffle: bool, tmp_path: Path
) -> None:
    if workers and (shuffle or sizes == [7]):
        pytest.skip("starting workers is slow; one case of each kind is enough")
    for number, size in enumerate(sizes):
        write(tmp_path / f"{number}.parquet", [[number]] * size)
    seen: Counter[int] = Counter()
    steps = set()
    for rank in range(ranks):
        loader = DataLoader(
            str(tmp_path / "*.parquet"),
            batch_size=4,
            shuffle=shuffle,
            max_tokens=8,
            topology=Topology(ranks=ranks),
            rank=rank,
            num_workers=workers,
        )
        batches = list(loader)
        seen.update(int(row) for batch in batches for _, row in batch.sample_ids)
        steps.add((len(loader), sum(batch.last_in_step for batch in batches)))
    assert seen == Counter(range(sum(sizes)))
    ((told, run),) = steps
    assert told == run == -(-sum(sizes) // (4 * ranks))


# ------------------------------------------------------------------------ U43: columns that differ


def test_u43_integer_lists_of_any_type_mix_and_come_out_as_one(tmp_path: Path) -> None:
    kinds = {"a": pa.list_(pa.int32()), "b": pa.large_list(pa.int64()), "c": pa.list_(pa.int64())}
    rows: dict[str, list[Any]] = {name: [[1, 2], [3]] for name in kinds}
    rows["c"] = [[1], None, None, None, [], [], [9, 9]]
    sources = {
        name: open_source(write(tmp_path / f"{name}.parquet", rows[name], kind))
        for name, kind in kinds.items()
    }
    assert sources["c"].null_rows() == 3  # type: ignore[attr-defined]
    loader = DataLoader(Mixture(sources, stop="all_once"), batch_size=3, max_tokens=32)
    batches = list(loader)
    assert {batch["input_ids"].dtype for batch in batches} == {batches[0]["input_ids"].dtype}
    assert sum(len(batch.sample_ids) for batch in batches) == 6
    assert loader.metrics()["empty"] == 5


def test_u43_a_source_without_the_label_column_is_named(tmp_path: Path) -> None:
    with_labels = write(tmp_path / "a.parquet", [[1, 2]], labels=[[1, 2]])
    without = write(tmp_path / "d.parquet", [[1, 2]])
    open_source(with_labels, labels="labels").lengths()
    with pytest.raises(ValueError, match=r"d\.parquet: no column 'labels'; the columns are input_ids"):
        open_source([with_labels, without], labels="labels").lengths()


def test_u43_a_column_that_is_null_first_and_text_later_loads(tmp_path: Path) -> None:
    notes = [None] * 10_000 + ["late"] * 5
    lines = [json.dumps({"input_ids": [1], "note": note}) for note in notes]
    (tmp_path / "e.jsonl").write_text("\n".join(lines))
    write(tmp_path / "e.parquet", [[1]] * 10_005, note=pa.array(notes, pa.string()))
    for name in ("e.jsonl", "e.parquet"):
        found = open_source(tmp_path / name, carry=["note"]).read(np.array([10_004, 0]))
        assert found.columns["note"] == ["late", None]


# ------------------------------------------------------------------------ U45: 32-bit limits


class Virtual(ArraySource):
    """Rows known by their lengths alone."""

    def __init__(self, name: str) -> None:
        super().__init__(np.full(1500, 1_000_000), name=name)  # type: ignore[arg-type]

    def fingerprint(self) -> str:
        return self.name


def test_u45_four_and_a_half_billion_tokens_are_counted_right() -> None:
    catalogs = [open_catalog(Virtual(name), capacity=1 << 20, oversize="error") for name in "abc"]
    assert sum(int(catalog.lengths.sum()) for catalog in catalogs) == 4_500_000_000
    mixture = Mixture({name: Virtual(name) for name in "abc"}, stop="all_once")
    loader = DataLoader(mixture, global_batch_size=4500, max_tokens=1 << 20)
    step = loader.step(0)
    assert int(step.table.num_tokens.sum()) == 4_500_000_000
    assert int(step.table.num_loss_tokens.sum()) == 4_500_000_000 - 4500
    assert step.plan.time_s > 0


def test_u45_offsets_beyond_32_bits_find_their_rows(tmp_path: Path) -> None:
    """A window over two mapped batches that lie more than 2^32 bytes apart, in a file with a hole."""
    from loaders.sources.flat import list_runs
    from loaders.sources.mapping import map_file

    path = tmp_path / "sparse"
    apart = (1 << 32) + (1 << 20)
    with open(path, "wb") as file:
        file.write(np.arange(4, dtype="<i4").tobytes())
        file.seek(apart)
        file.write(np.arange(10, 14, dtype="<i4").tobytes())
    content = map_file(str(path))
    pieces = []
    for begin in (0, apart):
        values = pa.Array.from_buffers(pa.int32(), 4, [None, content.slice(begin, 16)])
        pieces.append(pa.ListArray.from_arrays(pa.array([0, 1, 4], pa.int32()), values))
    runs = list_runs(pa.chunked_array(pieces), "column")
    taken = runs.take(np.array([3, 0, 2, 1]))
    found = [
        runs.values[start : start + length].tolist()
        for start, length in zip(taken.starts, taken.lengths, strict=True)
    ]
    assert found == [[11, 12, 13], [0], [10], [1, 2, 3]]
