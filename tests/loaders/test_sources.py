"""Every kind of source holds the same rows: lengths first, then tokens, in any order."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.packing_job.megatron import write_index
from loaders.sources import Source, open_source
from loaders.sources.mapping import map_file

RNG = np.random.default_rng(0)
ROWS: list[list[int]] = [RNG.integers(0, 1000, n).tolist() for n in RNG.integers(0, 40, 300)]
ROWS[7] = []
MASKS = [[int(t % 3 != 0) for t in row] for row in ROWS]


def table(**more: Any) -> pa.Table:
    return pa.table({"input_ids": pa.array(ROWS, pa.list_(pa.int32())), **more})


def lines(path: Path) -> bytes:
    return "".join(json.dumps({"input_ids": row}) + "\n" for row in ROWS).encode()


def write_parquet(path: Path) -> Any:
    rows = table()
    pq.write_table(rows.slice(0, 100), path / "a.parquet", row_group_size=33)
    pq.write_table(rows.slice(100), path / "b.parquet", row_group_size=64)
    return str(path / "*.parquet")


def write_arrow_stream(path: Path) -> Any:
    with pa.ipc.new_stream(str(path / "a.arrow"), table().schema) as writer:
        writer.write_table(table(), max_chunksize=50)
    return str(path / "a.arrow")


def write_arrow_file(path: Path) -> Any:
    with pa.ipc.new_file(str(path / "a.arrow"), table().schema) as writer:
        writer.write_table(table(), max_chunksize=50)
    return path / "a.arrow"


def write_lines(path: Path) -> Any:
    (path / "a.jsonl").write_bytes(lines(path))
    return str(path / "a.jsonl")


def write_gz(path: Path) -> Any:
    (path / "a.jsonl.gz").write_bytes(gzip.compress(lines(path)))
    return str(path / "a.jsonl.gz")


def write_zst(path: Path) -> Any:
    (path / "a.jsonl.zst").write_bytes(zstandard.compress(lines(path)))
    return str(path / "a.jsonl.zst")


def save_dataset(path: Path) -> Any:
    datasets.Dataset(table()).save_to_disk(str(path / "saved"))
    return str(path / "saved")


def write_megatron(path: Path) -> Any:
    np.concatenate(ROWS).astype("<i4").tofile(path / "a.bin")
    lengths = np.array([len(row) for row in ROWS], np.int32)
    write_index(path / "a.idx", lengths, np.ones(lengths.size, np.int64))
    return str(path / "a.idx")


class OwnDataset:
    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input_ids": ROWS[row], "size": len(ROWS[row])}


KINDS: dict[str, Callable[[Path], Any]] = {
    "parquet": write_parquet,
    "arrow stream": write_arrow_stream,
    "arrow file": write_arrow_file,
    "lines": write_lines,
    "lines.gz": write_gz,
    "lines.zst": write_zst,
    "save_to_disk": save_dataset,
    "megatron": write_megatron,
    "datasets": lambda path: datasets.Dataset.from_dict({"input_ids": ROWS}),
    "datasets, selected": lambda path: datasets.Dataset.from_dict({"input_ids": ROWS[::-1]}).select(
        range(len(ROWS) - 1, -1, -1)
    ),
    "datasets, many batches": lambda path: datasets.Dataset(
        pa.concat_tables([table().slice(first, 30) for first in range(0, len(ROWS), 30)])
    ),
    "torch": lambda path: OwnDataset(),
}


def pieces(source: Source, rows: list[int]) -> list[list[int]]:
    found = source.read(np.array(rows, np.int64))
    bounds = found.offsets.tolist()
    return [found.input_ids[a:b].tolist() for a, b in pairwise(bounds)]


@pytest.fixture(params=sorted(KINDS))
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    return open_source(KINDS[request.param](tmp_path))


def test_lengths_are_known_before_anything_is_read(source: Source) -> None:
    assert len(source) == len(ROWS)
    assert source.lengths().tolist() == [len(row) for row in ROWS]
    assert source.lengths().dtype == np.int64
    assert source.loss_tokens().tolist() == [max(len(row) - 1, 0) for row in ROWS]


def test_rows_come_in_the_order_asked_for(source: Source) -> None:
    asked = RNG.integers(0, len(ROWS), 200).tolist()
    assert pieces(source, asked) == [ROWS[row] for row in asked]
    assert pieces(source, []) == []


def test_a_pickled_source_reads_the_same(source: Source) -> None:
    source.lengths()
    copy = pickle.loads(pickle.dumps(source))
    assert pieces(copy, [5, 299, 5, 7]) == [ROWS[5], ROWS[299], ROWS[5], []]
    assert copy.fingerprint() == source.fingerprint()


def test_rows_outside_are_refused(source: Source) -> None:
    with pytest.raises(IndexError):
        source.read(np.array([len(ROWS)]))


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"torch", "megatron"}))
def test_every_origin_names_a_place(kind: str, tmp_path: Path) -> None:
    origin = open_source(KINDS[kind](tmp_path), name="the name").origin(250)
    if kind.startswith("lines"):
        assert "line 251 (byte" in origin
    elif kind == "parquet":
        assert origin.endswith("b.parquet, row 150")
    else:
        assert origin.endswith("row 250")


def test_an_opened_source_is_handed_through() -> None:
    source = open_source(OwnDataset())
    assert open_source(source) is source


@settings(max_examples=25)
@given(
    rows=st.lists(st.none() | st.lists(st.integers(0, 2**31 - 1), max_size=5), min_size=1, max_size=30),
    group=st.integers(1, 9),
    kind=st.sampled_from([pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint32())]),
)
def test_any_integer_list_column_comes_out_as_int32(
    rows: list[list[int] | None], group: int, kind: pa.DataType, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rows") / "a.parquet"
    pq.write_table(pa.table({"input_ids": pa.array(rows, kind)}), path, row_group_size=group)
    source = open_source(path)
    order = list(range(len(rows)))[::-1]
    assert pieces(source, order) == [rows[row] or [] for row in order]
    assert source.read(np.array(order)).input_ids.dtype == np.int32
    assert source.null_rows() == sum(row is None for row in rows)  # type: ignore[attr-defined]


@pytest.mark.parametrize("column", ["labels", "loss_mask", "completion_mask", "assistant_masks", "mine"])
def test_u05_masks_stay_beside_their_tokens(column: str, tmp_path: Path) -> None:
    labels = [
        [t if keep else -100 for t, keep in zip(r, m, strict=True)] for r, m in zip(ROWS, MASKS, strict=True)
    ]
    values = labels if column == "labels" else MASKS
    pq.write_table(table(**{column: values}), tmp_path / "a.parquet", row_group_size=50)
    datasets.Dataset(table(**{column: values})).save_to_disk(str(tmp_path / "saved"))
    for spec in (tmp_path / "a.parquet", tmp_path / "saved"):
        source = open_source(spec, labels="mine" if column == "mine" else None)
        found = source.read(np.array([3, 250, 7, 11]))
        assert found.labels is not None
        assert found.labels.tolist() == [t for row in (3, 250, 7, 11) for t in labels[row]]
        assert source.loss_tokens().tolist() == [sum(t != -100 for t in row[1:]) for row in labels]


def test_labels_can_be_left_aside(tmp_path: Path) -> None:
    pq.write_table(table(loss_mask=MASKS), tmp_path / "a.parquet")
    assert open_source(tmp_path / "a.parquet", labels=False).read(np.array([3])).labels is None


def test_a_class_label_is_no_token_label(tmp_path: Path) -> None:
    pq.write_table(table(labels=[1] * len(ROWS)), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text('{"input_ids": [1, 2], "labels": 1}\n')
    assert open_source(tmp_path / "a.parquet").read(np.array([3])).labels is None
    assert open_source(tmp_path / "a.jsonl").read(np.array([0])).labels is None


def test_lengths_may_come_from_a_column(tmp_path: Path) -> None:
    pq.write_table(table(size=[len(row) for row in ROWS]), tmp_path / "a.parquet")
    assert open_source(tmp_path / "a.parquet", length="size").lengths().tolist() == [len(r) for r in ROWS]
    with pytest.raises(ValueError, match=r"a\.parquet: no column 'sizes'; the columns are input_ids, size"):
        open_source(tmp_path / "a.parquet", length="sizes").lengths()


@pytest.mark.parametrize("length", ["size", lambda sample: sample["size"], [len(row) for row in ROWS]])
def test_lengths_of_a_torch_dataset_may_be_told(length: Any) -> None:
    assert open_source(OwnDataset(), length=length).lengths().tolist() == [len(row) for row in ROWS]


def test_further_columns_are_carried(tmp_path: Path) -> None:
    names = [f"row {row}" for row in range(len(ROWS))]
    pq.write_table(table(name=names), tmp_path / "a.parquet", row_group_size=50)
    found = open_source(tmp_path / "a.parquet", carry=["name"]).read(np.array([299, 0, 60]))
    assert found.columns == {"name": ["row 299", "row 0", "row 60"]}


def test_two_files_of_different_integer_types_are_one_source(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": pa.array([[1, 2]], pa.list_(pa.int32()))}), tmp_path / "a.parquet")
    pq.write_table(
        pa.table({"input_ids": pa.array([[3]], pa.large_list(pa.int64()))}), tmp_path / "b.parquet"
    )
    source = open_source([tmp_path / "b.parquet", tmp_path / "a.parquet"])
    assert pieces(source, [0, 1]) == [[3], [1, 2]]


def test_the_fingerprint_changes_with_the_data_and_not_with_the_place(tmp_path: Path) -> None:
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        pq.write_table(table(), tmp_path / place / "a.parquet")
    one, two = (open_source(tmp_path / place / "a.parquet").fingerprint() for place in ("one", "two"))
    assert one == two
    pq.write_table(table().slice(1), tmp_path / "two" / "a.parquet")
    assert open_source(tmp_path / "two" / "a.parquet").fingerprint() != one
    assert open_source(tmp_path / "one" / "a.parquet", labels=False).fingerprint() != one


def test_u45_a_hundred_files_need_few_descriptors(tmp_path: Path) -> None:
    import os

    sources = []
    for number in range(100):
        if number % 2:
            pq.write_table(table().slice(0, 10), tmp_path / f"{number}.parquet")
            sources.append(open_source(tmp_path / f"{number}.parquet"))
        else:
            with pa.ipc.new_file(str(tmp_path / f"{number}.arrow"), table().schema) as writer:
                writer.write_table(table().slice(0, 10))
            sources.append(open_source(tmp_path / f"{number}.arrow"))
    before = len(os.listdir("/proc/self/fd"))
    for source in sources:
        assert pieces(source, [3]) == [ROWS[3]]
    assert len(os.listdir("/proc/self/fd")) - before < 64


def test_threads_may_share_a_source(source: Source) -> None:
    asked = [RNG.integers(0, len(ROWS), 50).tolist() for _ in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for rows, found in zip(asked, pool.map(partial(pieces, source), asked), strict=True):
            assert found == [ROWS[row] for row in rows]


def test_an_empty_file_maps_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert map_file(str(tmp_path / "empty")).size == 0
    with pytest.raises(FileNotFoundError):
        map_file(str(tmp_path / "none"))


def test_no_rows_are_a_source_too(tmp_path: Path) -> None:
    pq.write_table(table().slice(0, 0), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_bytes(b"")
    for name in ("a.parquet", "a.jsonl"):
        source = open_source(tmp_path / name)
        assert len(source) == 0
        assert source.lengths().size == 0
        assert source.read(np.zeros(0, np.int64)).offsets.tolist() == [0]
