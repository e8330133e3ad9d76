"""Files behind URLs: any filesystem that fsspec knows, here one in memory and an HTTP server."""

from __future__ import annotations

import functools
import gzip
import json
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import zstandard

from loaders import DataLoader
from loaders.packing_job.megatron import write_index
from loaders.sources import megatron, open_source
from tests.loaders.packing_runs import documents, pack
from tests.loaders.test_sources_mosaic import shard
from tests.loaders.test_sources_webdataset import write_tar

ROWS = documents(120)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = pa.table({"input_ids": pa.array(ROWS, pa.list_(pa.int32()))})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=25)
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), rows.schema) as writer:
        writer.write_table(rows, max_chunksize=25)
    lines = "".join(json.dumps({"input_ids": row}) + "\n" for row in ROWS).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(lines))
    objects = [(f"{n:04}.json", json.dumps({"input_ids": row}).encode()) for n, row in enumerate(ROWS)]
    write_tar(tmp_path / "a.tar", objects)
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress((tmp_path / "a.tar").read_bytes()))
    np.concatenate(ROWS).astype("<i4").tofile(tmp_path / "a.bin")
    lengths = np.array([len(row) for row in ROWS], np.int32)
    write_index(tmp_path / "a.idx", lengths, np.ones(lengths.size, np.int64))
    samples = [[np.array(row, "<i4").tobytes()] for row in ROWS]
    (tmp_path / "a.mds").write_bytes(shard({"input_ids": ("bytes", None)}, samples))
    (tmp_path / "b.mds.zstd").write_bytes(zstandard.compress((tmp_path / "a.mds").read_bytes()))
    listed = [{"format": "mds", "raw_data": {"basename": "a.mds"}, "zip_data": None}]
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": listed}))
    return tmp_path


class RangeHandler(SimpleHTTPRequestHandler):
    """Serves files, whole or a range of their bytes."""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        path = Path(self.translate_path(self.path))
        if wanted is None or not path.is_file():
            super().do_GET()
            return
        content = path.read_bytes()
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last or len(content) - 1), len(content) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {begin}-{end}/{len(content)}")
        self.send_header("Content-Length", str(end - begin + 1))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        self.wfile.write(content[begin : end + 1])


@pytest.fixture
def memory(folder: Path) -> Iterator[str]:
    filesystem = fsspec.filesystem("memory")
    for path in folder.iterdir():
        filesystem.pipe(f"/corpus/{path.name}", path.read_bytes())
    yield "memory://corpus"
    filesystem.rm("/corpus", recursive=True)


@pytest.fixture
def server(folder: Path) -> Iterator[str]:
    pytest.importorskip("aiohttp", reason="fsspec reads HTTP with aiohttp")
    handler = functools.partial(RangeHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


NAMES = [
    "a.parquet",
    "a.arrow",
    "a.jsonl",
    "a.jsonl.gz",
    "a.jsonl.zst",
    "a.tar",
    "b.tar.gz",
    "a.idx",
    "a.mds",
    "b.mds.zstd",
    "index.json",
]


def column_of(name: str) -> str:
    return "input_ids:int32" if "mds" in name or name == "index.json" else "input_ids"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["memory", "server"])
def test_a_url_reads_like_a_file(request: pytest.FixtureRequest, place: str, name: str, folder: Path) -> None:
    url = f"{request.getfixturevalue(place)}/{name}"
    remote = open_source(url, column=column_of(name), cache=False)
    local = open_source(folder / name, column=column_of(name), cache=False)
    assert remote.lengths().tolist() == local.lengths().tolist()
    rows = np.array([100, 3, 55])
    assert remote.read(rows).input_ids.tolist() == local.read(rows).input_ids.tolist()
    assert remote.fingerprint() == local.fingerprint()
    assert remote.origin(3).startswith(url.replace("index.json", "a.mds"))


@pytest.mark.parametrize("name", NAMES)
def test_forked_workers_open_urls_anew(server: str, name: str) -> None:
    """The parent has read from the file before: its connections and positions stay its own."""
    source = open_source(f"{server}/{name}", column=column_of(name), cache=False)
    source.read(np.arange(len(ROWS)))
    assert rows_of_workers(source, "fork") == list(range(len(ROWS)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.parquet", "b.tar.gz"])
def test_spawned_workers_open_urls_anew(server: str, name: str) -> None:
    source = open_source(f"{server}/{name}", column=column_of(name), cache=False)
    assert rows_of_workers(source, "spawn") == list(range(len(ROWS)))


def rows_of_workers(source: Any, method: str) -> list[int]:
    loader = DataLoader(
        source, batch_size=30, shuffle=True, max_tokens=1 << 14, num_workers=2, multiprocessing_context=method
    )
    found = {}
    for batch in loader:
        pieces = torch.split(batch["input_ids"][0], batch.seq_lengths.tolist())
        for (_, row), tokens in zip(batch.sample_ids.tolist(), pieces, strict=True):
            found[row] = tokens.tolist()
    assert all(found[row] == ROWS[row] for row in found)
    empty = [row for row in range(len(ROWS)) if not ROWS[row]]
    return sorted([*found, *empty])


def test_a_cached_url_is_fetched_once(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec's own caches keep files on disk for all processes of a machine."""
    monkeypatch.chdir(tmp_path)
    source = open_source(f"simplecache::{server}/a.parquet", cache=False)
    assert source.read(np.array([5])).input_ids.tolist() == ROWS[5]


def test_tokens_behind_a_url_are_fetched_in_runs(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megatron, "FETCHED_BYTES", 400)
    source = open_source(f"{server}/a.idx", cache=False)
    blocks = source.blocks()
    assert blocks is not None
    assert blocks.size_bytes.size > 5
    assert blocks.fetched
    assert source.lengths().tolist() == [len(row) for row in ROWS]
    assert source.read(np.array([119, 0, 60])).input_ids.tolist() == ROWS[119] + ROWS[0] + ROWS[60]
    assert "a.idx, row 60" in source.origin(60)


def test_patterns_and_folders_work_behind_urls(memory: str) -> None:
    assert open_source(f"{memory}/*.parquet").lengths().tolist() == [len(row) for row in ROWS]
    with pytest.raises(ValueError, match="of one format"):
        open_source(memory)
    with pytest.raises(FileNotFoundError, match="matches no file"):
        open_source(f"{memory}/*.feather")
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_source(f"{memory}/none.parquet")


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.gz"])
def test_urls_are_packed(memory: str, name: str, tmp_path: Path) -> None:
    manifest = pack([f"{memory}/{name}"], tmp_path / "out")
    assert manifest["counts"]["kept"] == len(ROWS)
    assert manifest["num_tokens"] == sum(map(len, ROWS))
