"""Lengths are found once and remembered until a file changes; decoded chunks stay within their budget."""

from __future__ import annotations

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


def test_a_broken_cache_is_passed_over(path: Path, tmp_path: Path) -> None:
    open_source(path, cache=tmp_path / "cache").lengths()
    (kept,) = (tmp_path / "cache" / "lengths").iterdir()
    for content in (b"", b"nonsense", kept.read_bytes()[:-50]):
        kept.write_bytes(content)
        assert open_source(path, cache=tmp_path / "cache").lengths().size == 100
    assert open_source(path, cache=path / "not a folder").lengths().size == 100


def test_a_quick_scan_leaves_no_file(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ROWS)
    open_source(tmp_path / "a.parquet", cache=tmp_path / "cache").lengths()
    assert not (tmp_path / "cache").exists()


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
