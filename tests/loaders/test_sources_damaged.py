"""A damaged file among others: named, and with ``on_error="skip"`` left out as a whole and written down."""

from __future__ import annotations

import errno
import gzip
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from balancer import Topology
from loaders import DataLoader, open_source
from loaders.packing_job.megatron import write_index
from loaders.quarantine import TooManyRejects
from loaders.sources import scanning
from loaders.sources.broken import BrokenFile, told
from loaders.sources.files import DataFile
from tests.loaders.test_sources_mosaic import array, shard
from tests.loaders.test_sources_webdataset import write_tar

ROWS = [list(range(1, 2 + row % 5)) for row in range(12)]


def write_parquet(path: Path) -> None:
    pq.write_table(pa.table({"input_ids": ROWS}), path, row_group_size=4)


def write_arrow(path: Path) -> None:
    rows = pa.table({"input_ids": ROWS})
    with pa.ipc.new_file(str(path), rows.schema) as writer:
        writer.write_table(rows)


def write_gz(path: Path) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps({"input_ids": row}) + "\n" for row in ROWS).encode()))


def write_megatron(path: Path) -> None:
    np.concatenate(ROWS).astype("<i4").tofile(path.with_suffix(".bin"))
    lengths = np.array([len(row) for row in ROWS], np.int32)
    write_index(path, lengths, np.ones(lengths.size, np.int64))


def write_mds(path: Path) -> None:
    path.write_bytes(shard({"input_ids": ("ndarray:int32", None)}, [[array(row, "<i4")] for row in ROWS]))


def write_webdataset(path: Path) -> None:
    write_tar(path, [(f"{n:03}.json", json.dumps({"input_ids": row}).encode()) for n, row in enumerate(ROWS)])


KINDS: dict[str, Callable[[Path], None]] = {
    ".parquet": write_parquet,
    ".arrow": write_arrow,
    ".jsonl.gz": write_gz,
    ".idx": write_megatron,
    ".mds": write_mds,
    ".tar": write_webdataset,
}


@pytest.fixture(params=sorted(KINDS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Three files, the middle one cut short by ten bytes."""
    for name in "abc":
        KINDS[request.param](tmp_path / (name + request.param))
    middle = tmp_path / ("b" + request.param)
    content = middle.read_bytes()
    middle.write_bytes(content[: len(content) // 2] if request.param == ".tar" else content[:-10])
    return tmp_path


def pattern(folder: Path) -> str:
    (first,) = (path for path in folder.glob("a.*") if path.suffix != ".bin")
    return str(folder / first.name.replace("a.", "*.", 1))


def test_u42_a_damaged_file_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"/b\.\w+.* cut short"):
        open_source(pattern(folder)).lengths()


def test_u42_a_damaged_file_is_skipped_as_a_whole_and_the_others_keep_their_rows(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        source = open_source(pattern(folder), on_bad="skip")
        assert source.lengths().tolist() == [len(row) for row in ROWS] * 2
    assert sum("left out" in record.message for record in caplog.records) == 1
    assert source.read(np.array([0, 12, 23])).input_ids.tolist() == ROWS[0] + ROWS[0] + ROWS[11]
    (reject,) = source.rejects()  # type: ignore[attr-defined]
    assert (Path(reject.origin).name[:2], reject.row) == ("b.", -2)
    assert Path(source.origin(12).partition(",")[0]).name.startswith("c.")


def test_u42_every_rank_leaves_the_same_file_out_and_it_is_written_down_once(folder: Path) -> None:
    steps = []
    for rank in range(2):
        loader = DataLoader(
            pattern(folder),
            batch_size=3,
            shuffle=True,
            max_tokens=64,
            topology=Topology(ranks=2),
            rank=rank,
            on_error="skip",
            max_errors=1,
            quarantine=folder / "quarantine",
        )
        steps.append([batch.step_loss_tokens for batch in loader if batch.last_in_step])
        assert loader.metrics()["skipped"] == 1
        assert loader.metrics()["kept"] == 2 * len(ROWS)
    assert steps[0] == steps[1]
    (line,) = (folder / "quarantine").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["row"], entry["stage"]) == (-2, "open")
    assert Path(entry["origin"]).name.startswith("b.")
    assert "b." in entry["reason"]


def test_damaged_files_count_against_the_budget(folder: Path) -> None:
    with pytest.raises(TooManyRejects, match="more than the 0 allowed"):
        DataLoader(pattern(folder), max_tokens=64, on_error="skip", max_errors=0)


def test_a_damaged_row_group_loses_its_rows_and_no_others(tmp_path: Path) -> None:
    table = pa.table({"input_ids": [list(range(500))] * 12})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[4:200] = b"\xff" * 196
    (tmp_path / "a.parquet").write_bytes(bytes(content))
    source = open_source(tmp_path / "a.parquet", on_bad="skip")
    assert source.lengths().tolist() == [0] * 4 + [500] * 8
    rejects = source.rejects()  # type: ignore[attr-defined]
    assert [reject.row for reject in rejects] == [0, 1, 2, 3]
    assert all("row group 0 cannot be read" in reject.reason for reject in rejects)


def test_what_is_left_out_is_remembered_with_the_lengths(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "WORTH_KEEPING_S", 0.0)
    found = [open_source(pattern(folder), on_bad="skip", cache=tmp_path / "cache") for _ in range(2)]
    told_twice = [[str(reject) for reject in source.rejects()] for source in found]  # type: ignore[attr-defined]
    assert told_twice[0] == told_twice[1]
    assert found[1].lengths().tolist() == found[0].lengths().tolist()
    with pytest.raises(ValueError, match="cut short"):  # strict reading does not use what skipping found
        open_source(pattern(folder), cache=tmp_path / "cache").lengths()


def test_a_file_that_cannot_be_reached_is_no_damaged_one() -> None:
    """Other ranks may reach it, so leaving it out would part them."""
    file = DataFile("a.parquet", 10)

    def fail(error: Exception) -> Any:
        raise error

    with pytest.raises(OSError, match="Input/output error") as caught:
        told(file, "footer", lambda: fail(OSError(errno.EIO, "Input/output error")))
    assert not isinstance(caught.value, BrokenFile)
    with pytest.raises(BrokenFile, match=r"a\.parquet: the footer cannot be read \(magic bytes"):
        told(file, "footer", lambda: fail(pa.ArrowInvalid("magic bytes not found")))
