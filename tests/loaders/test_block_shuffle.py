"""Shuffling by blocks: every row once, few blocks open, and over HTTP hardly more bytes than there are."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders import DataLoader, Mixture, open_source
from loaders.order import reference
from loaders.order.blocks import BlockShuffle
from loaders.sources import chunked
from loaders.sources.cache import BoundedCache
from loaders.sources.jsonl import JsonLinesSource
from tests.loaders.test_sources_remote import RangeHandler

block_sizes = st.lists(st.integers(0, 12), min_size=1, max_size=20).filter(any)
keys = st.integers(0, 2**64 - 1)


def block_shuffle(sizes: list[int] | np.ndarray, together: int) -> BlockShuffle:
    return BlockShuffle(
        first_place=np.concatenate(([0], np.cumsum(sizes))).astype(np.int64), together=together
    )


@given(sizes=block_sizes, together=st.integers(1, 25), key=keys)
def test_every_row_comes_exactly_once(sizes: list[int], together: int, key: int) -> None:
    total = sum(sizes)
    found = block_shuffle(sizes, together).permute(np.arange(total), key)
    assert sorted(found.tolist()) == list(range(total))


@given(sizes=block_sizes, together=st.integers(1, 25), key=keys)
def test_positions_equal_the_slow_twin(sizes: list[int], together: int, key: int) -> None:
    total = sum(sizes)
    found = block_shuffle(sizes, together).permute(np.arange(total), key)
    assert found.tolist() == [reference.permute_blocks(p, sizes, together, key) for p in range(total)]


@given(sizes=block_sizes, together=st.integers(1, 6), key=keys, part=st.integers(1, 30))
def test_few_blocks_are_open_at_any_time(sizes: list[int], together: int, key: int, part: int) -> None:
    """A block's rows all come within one window, so a stretch of positions needs those of its windows."""
    found = block_shuffle(sizes, together).permute(np.arange(sum(sizes)), key)
    block = np.repeat(np.arange(len(sizes)), sizes)[found]
    ends = {int(b): np.flatnonzero(block == b)[[0, -1]] for b in np.unique(block)}
    widest = together * max(sizes)
    assert all(last - first < widest for first, last in ends.values())
    for p in range(block.size):
        assert sum(first <= p <= last for first, last in ends.values()) <= together


def test_a_far_position_needs_an_entry_a_block_and_none_a_row() -> None:
    rows, blocks = 10**12, 100_000
    made = block_shuffle(np.full(blocks, rows // blocks), 16)
    at = np.arange(rows - 512, rows)
    found = made.permute(at, 5)
    assert np.unique(found).size == 512
    assert np.unique(found // (rows // blocks)).size <= 16
    ((order, ends),) = made._orders.values()
    assert order.size + ends.size == 2 * blocks + 1
    assert made.permute(at[100:200], 5).tolist() == found[100:200].tolist()


def test_epochs_put_blocks_and_rows_in_other_orders() -> None:
    made = block_shuffle([10] * 50, 5)
    first, second = made.permute(np.arange(500), 1), made.permute(np.arange(500), 2)
    assert first.tolist() != second.tolist()
    assert set((first[:50] // 10).tolist()) != set((second[:50] // 10).tolist())


def test_rows_of_a_window_are_mixed_and_not_given_block_by_block() -> None:
    found = block_shuffle([1000] * 40, 8).permute(np.arange(40_000), 3)
    changes = np.count_nonzero(np.diff(found[:8000] // 1000))
    assert changes == pytest.approx(8000 * 7 / 8, rel=0.03)


# ------------------------------------------------------------------------------- behind a loader

GROUP, GROUPS = 50, 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 50_000, 100).tolist() for _ in range(GROUP * GROUPS)]
    rows[::7] = [[] for _ in rows[::7]]
    table = pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32()))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=GROUP)
    return tmp_path / "a.parquet"


def rows_of(loader: DataLoader[Any]) -> list[int]:
    return [int(row) for batch in loader for _, row in batch.sample_ids]


def test_local_files_that_fit_the_cache_are_shuffled_as_a_whole(path: Path) -> None:
    loader = DataLoader(open_source(path), batch_size=64, shuffle=True, max_tokens=8192)
    assert loader.metrics()["shuffle_radius"] == {}


def test_files_beyond_the_cache_are_shuffled_over_as_many_blocks_as_it_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = open_source(path)
    size = int(whole.blocks().size_bytes.max())  # type: ignore[union-attr]
    small = BoundedCache[Any](4 * 10 * size, lambda chunk: chunk.size_bytes)
    monkeypatch.setattr("loaders.order.blocks.DECODED", small)
    monkeypatch.setattr(chunked, "DECODED", small)
    decoded = 0
    decode = chunked.ChunkedSource.decode

    def counted(self: Any, chunk_id: int) -> Any:
        nonlocal decoded
        decoded += 1
        return decode(self, chunk_id)

    monkeypatch.setattr(chunked.ChunkedSource, "decode", counted)
    loader = DataLoader(open_source(path), batch_size=64, shuffle=True, max_tokens=8192)
    usable = loader.metrics()["kept"]
    assert loader.metrics()["shuffle_radius"] == {str(path): round(usable * 10 / GROUPS)}
    decoded = 0
    rows = rows_of(loader)
    assert len(set(rows)) == len(rows) == usable
    assert decoded <= GROUPS
    with pytest.raises(ValueError, match="blocks shuffled together"):
        DataLoader(
            open_source(path, shuffle_blocks=3), batch_size=64, shuffle=True, max_tokens=8192
        ).load_state_dict(loader.state_dict())


def test_a_mixture_shuffles_each_source_within_its_own_windows(path: Path) -> None:
    mixture = Mixture(
        {"a": open_source(path, shuffle_blocks=4), "b": open_source(path)}, by="samples", stop="all_once"
    )
    loader = DataLoader(mixture, batch_size=32, shuffle=True, max_tokens=4096)
    usable = loader.metrics()["kept"] // 2
    assert loader.metrics()["shuffle_radius"] == {"a": round(usable * 4 / GROUPS)}
    pairs = [(int(s), int(r)) for batch in loader for s, r in batch.sample_ids]
    assert len(set(pairs)) == len(pairs) == 2 * usable
    first = np.array([row for source, row in pairs if source == 0][: 3 * GROUP])
    assert np.unique(first // GROUP).size <= 4
    other = np.array([row for source, row in pairs if source == 1][: 3 * GROUP])
    assert np.unique(other // GROUP).size > 30


def test_the_number_of_blocks_is_checked(path: Path) -> None:
    with pytest.raises(
        ValueError, match="shuffle_blocks must be a whole number of blocks, 0 for all, got -1"
    ):
        open_source(path, shuffle_blocks=-1)
    with pytest.raises(ValueError, match="shuffle_blocks only has an effect on files, not on list"):
        open_source([{"input_ids": [1]}], shuffle_blocks=2)


class Counting(RangeHandler):
    """Counts what it sends."""

    sent = 0

    def do_GET(self) -> None:
        super().do_GET()

    def send_header(self, keyword: str, value: str) -> None:
        if keyword == "Content-Length" and self.command == "GET":
            Counting.sent += int(value)
        super().send_header(keyword, value)


@pytest.fixture
def url(path: Path) -> Iterator[str]:
    pytest.importorskip("aiohttp", reason="fsspec reads HTTP with aiohttp")
    handler = functools.partial(Counting, directory=str(path.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}/a.parquet"
        running.shutdown()


def test_an_epoch_over_http_fetches_each_row_group_once(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loaders.order.blocks.FETCHED_BLOCKS", 5)
    held = 10 * GROUP * (4 * 100 + 16)  # two windows, decoded
    monkeypatch.setattr(chunked, "DECODED", BoundedCache[Any](held, lambda chunk: chunk.size_bytes))
    size = path.stat().st_size
    epochs = {}
    for together in (None, 0):
        source = open_source(url, cache=False, shuffle_blocks=together)
        loader = DataLoader(source, batch_size=64, shuffle=True, max_tokens=8192)
        Counting.sent = 0
        rows = rows_of(loader)
        assert len(set(rows)) == len(rows) == loader.metrics()["kept"]
        epochs[together] = Counting.sent / size
    assert loader.metrics()["shuffle_radius"] == {}
    assert epochs[None] < 1.1
    assert epochs[0] > 5  # over all rows, for comparison


def test_an_epoch_over_http_fetches_each_block_of_lines_once(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pq.read_table(path)["input_ids"].to_pylist()
    lines = path.with_suffix(".jsonl")
    lines.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    monkeypatch.setattr(JsonLinesSource, "block_bytes", lines.stat().st_size // 50)
    monkeypatch.setattr("loaders.order.blocks.FETCHED_BLOCKS", 5)
    held = 11 * len(rows) // 50 * (4 * 100 + 16)  # two windows, decoded
    monkeypatch.setattr(chunked, "DECODED", BoundedCache[Any](held, lambda chunk: chunk.size_bytes))
    source = open_source(url.replace(".parquet", ".jsonl"), cache=False)
    loader = DataLoader(source, batch_size=64, shuffle=True, max_tokens=8192)
    Counting.sent = 0
    found = rows_of(loader)
    assert len(set(found)) == len(found) == loader.metrics()["kept"]
    assert Counting.sent < 1.1 * lines.stat().st_size
