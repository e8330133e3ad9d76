"""WebDataset tars as rows by number."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from loaders.sources import open_source
from loaders.sources.chunked import ChunkedSource
from loaders.sources.webdataset import split_name
from tests.loaders.packing_runs import documents, pack

ROWS = documents(150)


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def array(values: list[int]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array(values, np.uint16))
    return buffer.getvalue()


def members(kind: str) -> list[tuple[str, bytes]]:
    found = []
    for number, row in enumerate(ROWS):
        key = f"shard/{number:05d}"
        if kind == "json":
            found.append((f"{key}.json", json.dumps({"input_ids": row, "source": "x"}).encode()))
        elif kind == "npy":
            found.append((f"{key}.input_ids.npy", array(row)))
        else:
            found.append((f"{key}.input_ids.json", json.dumps(row).encode()))
        found.append((f"{key}.jpg", b"picture %d" % number))
    return found


@pytest.mark.parametrize("kind", ["json", "npy", "input_ids.json"])
def test_members_of_one_name_are_a_row(tmp_path: Path, kind: str) -> None:
    path = write_tar(tmp_path / "a.tar", members(kind))
    source = open_source(path, carry=["jpg"])
    assert source.lengths().tolist() == [len(row) for row in ROWS]
    found = source.read(np.array([140, 2]))
    assert found.input_ids.tolist() == ROWS[140] + ROWS[2]
    assert found.columns["jpg"] == [b"picture 140", b"picture 2"]
    assert source.origin(140) == f"{path}, row 140 (shard/00140)"


def test_a_compressed_tar_reads_the_same(tmp_path: Path) -> None:
    plain = write_tar(tmp_path / "a.tar", members("json"))
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert open_source(tmp_path / "a.tar.gz").read(np.array([7])).input_ids.tolist() == ROWS[7]


def test_lengths_do_not_touch_the_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from loaders.sources import webdataset

    touched = []
    columns = webdataset._columns
    monkeypatch.setattr(
        webdataset, "_columns", lambda name, data: touched.append(name) or columns(name, data)
    )
    source = open_source(write_tar(tmp_path / "a.tar", members("json")), carry=["jpg"])
    assert isinstance(source, ChunkedSource)
    assert len(source) == len(ROWS)
    source.lengths()
    assert set(touched) == {"json"}


def test_a_broken_member_is_told_and_skipped(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "a.tar",
        [
            ("a.json", b'{"input_ids": [1]}'),
            ("b.json", b'{"input_ids": [1'),
            ("c.json", b'{"input_ids": [2, 3]}'),
        ],
    )
    with pytest.raises(ValueError, match=r"a\.tar, row 1 \(b\): member \.json is not JSON"):
        open_source(path).lengths()
    source = open_source(path, on_bad="skip")
    assert source.lengths().tolist() == [1, 0, 2]


@pytest.mark.parametrize("cut", [600, 1100])
def test_a_tar_cut_short_is_named(tmp_path: Path, cut: int) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.json", b'{"input_ids": [1]}'), ("b.json", b" " * 2000)])
    path.write_bytes(path.read_bytes()[: 1024 + cut])
    with pytest.raises(ValueError, match=r"a\.tar: the tar cannot be read .*cut short"):
        open_source(path).lengths()


def test_tars_are_packed(tmp_path: Path) -> None:
    manifest = pack([str(write_tar(tmp_path / "a.tar", members("npy")))], tmp_path / "out")
    assert manifest["num_tokens"] == sum(map(len, ROWS))


def test_the_key_ends_at_the_first_dot_of_the_name() -> None:
    assert split_name("a.b/000.input_ids.NPY") == ("a.b/000", "input_ids.npy")
    assert split_name("000") == ("000", "")
