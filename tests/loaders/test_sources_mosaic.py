"""MosaicML's MDS shards, written here byte by byte as their format says."""

from __future__ import annotations

import gzip
import io
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from PIL import Image

from loaders import DataLoader
from loaders.sources import open_source
from tests.loaders.packing_runs import pack

ROWS = [list(range(row, row + 1 + row % 7)) for row in range(50)]
PACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".zstd": zstandard.compress, ".gz": gzip.compress}


def array(values: Sequence[int], dtype: str, code: int | None = None) -> bytes:
    """One axis, its size in one byte; with a byte for the type where ``code`` is given."""
    head = b"" if code is None else bytes([code])
    return head + bytes([1 << 2, len(values)]) + np.array(values, dtype).tobytes()


def shard(columns: dict[str, tuple[str, int | None]], samples: Sequence[Sequence[bytes]]) -> bytes:
    packed = []
    for sample in samples:
        pairs = zip(sample, columns.values(), strict=True)
        sizes = [struct.pack("<I", len(value)) for value, (_, size) in pairs if size is None]
        packed.append(b"".join([*sizes, *sample]))
    config = json.dumps(
        {
            "column_names": list(columns),
            "column_encodings": [encoding for encoding, _ in columns.values()],
            "column_sizes": [size for _, size in columns.values()],
        }
    ).encode()
    first = 4 * (len(samples) + 2) + len(config)
    bounds = np.cumsum([first, *map(len, packed)])
    return struct.pack(f"<{len(bounds) + 1}I", len(samples), *bounds) + config + b"".join(packed)


def write(folder: Path, shards: Sequence[bytes], suffix: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    listed = []
    for number, content in enumerate(shards):
        name = f"shard.{number:05}.mds"
        (folder / (name + suffix)).write_bytes(PACKERS[suffix](content))
        zipped = {"basename": name + suffix} if suffix else None
        listed.append({"format": "mds", "raw_data": {"basename": name}, "zip_data": zipped})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": listed}))
    return folder


def picture() -> bytes:
    return struct.pack("<3I", 2, 1, 3) + b"RGB" + bytes([9, 8, 7, 6, 5, 4])


COLUMNS: dict[str, tuple[str, int | None]] = {
    "input_ids": ("ndarray:int32", None),
    "any": ("ndarray", None),
    "four": ("ndarray:int16:4", 8),
    "raw": ("bytes", None),
    "text": ("str", None),
    "number": ("int", 8),
    "half": ("float32", 4),
    "digits": ("str_int", None),
    "meta": ("json", None),
    "picture": ("pil", None),
}


def sample(row: int) -> list[bytes]:
    ids = ROWS[row]
    return [
        array(ids, "<i4"),
        array(ids, "<i2", 17),
        np.arange(4, dtype="<i2").tobytes(),
        np.array(ids, "<i8").tobytes(),
        f"text {row} é".encode(),
        struct.pack("<q", -row),
        struct.pack("<f", row / 2),
        str(10**row).encode() if row < 18 else b"7",
        json.dumps({"row": [row]}).encode(),
        picture(),
    ]


@pytest.fixture(params=sorted(PACKERS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    parts = [range(20), range(20, 21), range(21, 50)]
    return write(
        tmp_path / "mds", [shard(COLUMNS, [sample(row) for row in part]) for part in parts], request.param
    )


@pytest.mark.parametrize("column", ["input_ids", "any", "raw:int64"])
def test_tokens_of_every_encoding_are_read_by_row(folder: Path, column: str) -> None:
    source = open_source(folder, column=column)
    assert source.lengths().tolist() == [len(row) for row in ROWS]
    found = source.read(np.array([49, 20, 3]))
    assert found.input_ids.tolist() == ROWS[49] + ROWS[20] + ROWS[3]
    assert source.origin(22).partition(", row ")[2] == "1"


def test_values_of_every_encoding_are_carried(folder: Path) -> None:
    names = ["four", "text", "number", "half", "digits", "meta", "picture"]
    found = open_source(folder, carry=names).read(np.array([17, 2])).columns
    pictures = found.pop("picture")
    assert found == {
        "four": [[0, 1, 2, 3]] * 2,
        "text": ["text 17 é", "text 2 é"],
        "number": [-17, -2],
        "half": [8.5, 1.0],
        "digits": [10**17, 100],
        "meta": [{"row": [17]}, {"row": [2]}],
    }
    assert [Image.open(io.BytesIO(one)).getpixel((1, 0)) for one in pictures] == [(6, 5, 4)] * 2


def test_a_loader_gives_every_sample_of_the_shards_once(folder: Path) -> None:
    loader = DataLoader(open_source(folder), batch_size=8, shuffle=True, max_tokens=64)
    rows = [int(row) for batch in loader for _, row in batch.sample_ids]
    assert sorted(rows) == list(range(50))


def test_shards_are_packed_by_the_command(folder: Path, tmp_path: Path) -> None:
    manifest = pack([str(folder)], tmp_path / "out")
    assert manifest["counts"]["kept"] == len(ROWS)
    assert manifest["num_tokens"] == sum(map(len, ROWS))


def test_the_index_or_a_pattern_opens_the_same_shards(folder: Path) -> None:
    whole = open_source(folder).lengths().tolist()
    assert open_source(folder / "index.json").lengths().tolist() == whole
    assert open_source(f"{folder}/*.mds*").lengths().tolist() == whole


def test_a_shard_cut_short_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "mds", [shard(COLUMNS, [sample(0), sample(1)])])
    path = folder / "shard.00000.mds"
    whole = path.read_bytes()
    for size in (0, 3, 9, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(
            ValueError, match=r"shard\.00000\.mds: the (head|shard) cannot be read .*cut short"
        ):
            open_source(folder).lengths()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"index\.json lists shard\.00000\.mds, which is not there"):
        open_source(folder)


def test_a_value_that_cannot_be_decoded_is_told_and_skipped(tmp_path: Path) -> None:
    columns: dict[str, tuple[str, int | None]] = {"input_ids": ("ndarray", None)}
    good, bad = array([1, 2], "<i4", 33), b"\xff\x04\x01"
    folder = write(tmp_path / "mds", [shard(columns, [[good], [bad], [good]])])
    with pytest.raises(ValueError, match=r"shard\.00000\.mds, row 1: column 'input_ids' cannot be decoded"):
        open_source(folder).lengths()
    source = open_source(folder, on_bad="skip")
    assert source.lengths().tolist() == [2, 0, 2]
    assert [str(one).partition(", ")[2][:5] for one in source.rejects()] == ["row 1"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("pkl", "pickled objects, which can run any code"),
        ("parquet", "encoding that is not known here, 'parquet'"),
        ("ndarray:int33", "encoding that is not known here, 'ndarray:int33'"),
        ("bytes", "must be a list of integers, it is .*binary"),
    ],
)
def test_encodings_that_cannot_be_read_are_refused(tmp_path: Path, encoding: str, message: str) -> None:
    folder = write(tmp_path / "mds", [shard({"input_ids": (encoding, None)}, [[b"\x80\x04K\x01."]])])
    with pytest.raises(ValueError, match=rf"shard\.00000\.mds: column 'input_ids' .*{message}|{message}"):
        open_source(folder).lengths()


def test_an_index_of_another_format_is_refused(tmp_path: Path) -> None:
    index: Any = {"shards": [{"format": "jsonl", "raw_data": {"basename": "shard.00000.jsonl"}}]}
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="format 'jsonl' are not known; MDS ones are"):
        open_source(tmp_path)
