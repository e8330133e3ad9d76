"""Lengths are found once and remembered until a file changes; decoded chunks stay within their budget."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaders.sources import open_source, scanning
from loaders.sources.cache import BoundedCache
from loaders.sources.parquet import ParquetSource
from loaders.sources.scanning import cache_folder, on_threads
from tests.loaders.test_sources_webdataset import write_tar

ROWS = [[1] * (row % 7) for row in range(100)]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(scanning, "WORTH_KEEPING_S", 0.0)
    write(tmp_path / "a.parquet", ROWS)
    return tmp_path / "a.parquet"


def write(path: Path, rows: list[list[int]]) -> None:
    masks = [[number % 2] * len(row) for number, row in enumerate(rows)]
    content = {"input_ids": pa.array(rows, pa.list_(pa.int32())), "loss_mask": masks}
    pq.write_table(pa.table(content), path, row_group_size=10)


def without_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, chunk_id: int) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(ParquetSource, "chunk", refuse)


def test_lengths_are_remembered(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_source(path, cache=tmp_path / "cache")
    lengths, labels = first.lengths(), first.loss_tokens()
    without_reading(monkeypatch)
    again = open_source(path, cache=tmp_path / "cache")
    assert again.lengths().tolist() == lengths.tolist() == [len(row) for row in ROWS]
    assert again.loss_tokens().tolist() == labels.tolist()
    for other in ({"labels": False}, {"vocab_size": 5}, {"cache": False}):
        with pytest.raises(AssertionError, match="read again"):
            open_source(path, **{"cache": tmp_path / "cache", **other}).lengths()


def test_a_file_that_changes_is_read_again(path: Path, tmp_path: Path) -> None:
    open_source(path, cache=tmp_path / "cache").lengths()
    before = path.stat()
    write(path, [[2] * (row % 5) for row in range(100)])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    found = open_source(path, cache=tmp_path / "cache").lengths()
    assert found.tolist() == [row % 5 for row in range(100)]


def test_a_file_of_equal_size_and_time_is_still_known_to_have_changed(path: Path, tmp_path: Path) -> None:
    """Copying tools set times back; the time of the entry itself cannot be set."""
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"input_ids": [1, 2, 3]}\n{"input_ids": [4]}\n')
    assert open_source(lines, cache=tmp_path / "cache").lengths().tolist() == [3, 1]
    before = lines.stat()
    lines.write_text('{"input_ids": [1]}\n{"input_ids": [2, 3, 4]}\n')
    os.utime(lines, ns=(before.st_atime_ns, before.st_mtime_ns))
    while lines.stat().st_ctime_ns == before.st_ctime_ns:  # file systems' clocks tick every few milliseconds
        os.utime(lines, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (lines.stat().st_size, lines.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert open_source(lines, cache=tmp_path / "cache").lengths().tolist() == [1, 3]


@pytest.mark.parametrize("kind", ["jsonl", "arrow", "tar"])
def test_where_rows_lie_is_remembered_with_the_lengths(
    kind: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"input_ids": pa.array(ROWS, pa.list_(pa.int32()))})
    objects = [json.dumps({"input_ids": row}).encode() for row in ROWS]
    if kind == "jsonl":
        (tmp_path / "a.jsonl").write_bytes(b"\n".join(objects))
    elif kind == "arrow":
        with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=10)
    else:
        write_tar(tmp_path / "a.tar", [(f"{n:03}.json", one) for n, one in enumerate(objects)])
    first = open_source(tmp_path / f"a.{kind}", cache=tmp_path / "cache")
    assert first.lengths().tolist() == [len(row) for row in ROWS]

    def refuse(self: Any, file: int) -> None:
        raise AssertionError("looked for again")

    monkeypatch.setattr(type(first), "chunks_of", refuse)
    again = open_source(tmp_path / f"a.{kind}", cache=tmp_path / "cache")
    assert again.lengths().tolist() == first.lengths().tolist()
    rows = np.array([99, 3, 50])
    assert again.read(rows).input_ids.tolist() == first.read(rows).input_ids.tolist()
    assert again.origin(50) == first.origin(50)
    with pytest.raises(AssertionError, match="looked for again"):
        open_source(tmp_path / f"a.{kind}", cache=False).lengths()


def test_a_long_search_for_lengths_shows_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scanning, "SHOWN_AFTER_S", -1.0)
    assert list(on_threads(str, range(3), "lengths of data")) == ["0", "1", "2"]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(on_threads(str, range(3), "lengths of data")) == ["0", "1", "2"]
    assert "lengths of data" in capsys.readouterr().err


def test_a_broken_cache_is_passed_over(path: Path, tmp_path: Path) -> None:
    open_source(path, cache=tmp_path / "cache").lengths()
    (kept,) = (tmp_path / "cache" / "lengths").iterdir()
    (where,) = (tmp_path / "cache" / "layout").iterdir()
    for content in (b"", b"nonsense", kept.read_bytes()[:-50]):
        kept.write_bytes(content)
        where.write_bytes(content)
        assert open_source(path, cache=tmp_path / "cache").lengths().size == 100
    assert open_source(path, cache=path / "not a folder").lengths().size == 100


def test_a_quick_scan_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "WORTH_KEEPING_S", 1000.0)
    write(tmp_path / "a.parquet", ROWS)
    open_source(tmp_path / "a.parquet", cache=tmp_path / "cache").lengths()
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_the_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "evenload"
    monkeypatch.setenv("EVENLOAD_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_threads_keep_the_order_and_tell_the_first_failure() -> None:
    assert list(on_threads(lambda n: n * n, range(50), "squares")) == [n * n for n in range(50)]
    with pytest.raises(ZeroDivisionError):
        list(on_threads(lambda n: 1 // (n - 20), range(50), "fractions"))


def test_a_cache_keeps_to_its_budget_and_drops_the_oldest() -> None:
    cache = BoundedCache[str](6, len)
    made: list[str] = []

    def value(key: str) -> str:
        def make() -> str:
            made.append(key)
            return key

        return cache.get(key, make)

    for key in ("aaa", "bbb", "aaa", "ccc", "aaa", "bbb"):
        assert value(key) == key
    assert made == ["aaa", "bbb", "ccc", "bbb"]
    assert value("much too large") == "much too large"
    assert len(cache) == 1
    cache.clear()
    assert len(cache) == 0


def test_chunks_beyond_the_budget_are_decoded_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from loaders.sources import chunked

    monkeypatch.setattr(chunked, "DECODED", BoundedCache(1, lambda chunk: chunk.size_bytes))
    source = open_source(path)
    rows = np.arange(100)
    assert source.read(rows).input_ids.tolist() == [t for row in ROWS for t in row]
    assert source.read(rows[::-1].copy()).offsets[-1] == sum(map(len, ROWS))


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.uint32()])
@pytest.mark.parametrize(("top", "width"), [(65_535, 2), (65_536, 4)])
def test_ids_below_65536_are_kept_in_two_bytes_and_read_as_they_are(
    tmp_path: Path, kind: pa.DataType, top: int, width: int
) -> None:
    rows = [[top - token for token in range(number % 5)] for number in range(20)]
    masks = [[number % 2] * len(row) for number, row in enumerate(rows)]
    content = {"input_ids": pa.array(rows, pa.list_(kind)), "loss_mask": masks}
    pq.write_table(pa.table(content), tmp_path / "a.parquet", row_group_size=10)
    source = open_source(tmp_path / "a.parquet")
    found = source.read(np.arange(20))
    assert {source.chunk(number).tokens.values.dtype.itemsize for number in range(2)} == {width}
    assert found.input_ids.dtype == np.int32
    assert found.input_ids.tolist() == [token for row in rows for token in row]
    wanted = [token if number % 2 else -100 for number, row in enumerate(rows) for token in row]
    assert found.labels.tolist() == wanted
