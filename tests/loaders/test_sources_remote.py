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

from loaders.sources import open_source
from tests.loaders.packing_runs import documents, pack

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


NAMES = ["a.parquet", "a.arrow", "a.jsonl", "a.jsonl.gz"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["memory", "server"])
def test_a_url_reads_like_a_file(request: pytest.FixtureRequest, place: str, name: str, folder: Path) -> None:
    url = f"{request.getfixturevalue(place)}/{name}"
    remote, local = open_source(url), open_source(folder / name)
    assert remote.lengths().tolist() == local.lengths().tolist()
    rows = np.array([100, 3, 55])
    assert remote.read(rows).input_ids.tolist() == local.read(rows).input_ids.tolist()
    assert remote.fingerprint() == local.fingerprint()
    assert remote.origin(3).startswith(url)


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
