"""What cannot be used is told with file and row, and never lost in silence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaders.sources import open_source
from loaders.sources.chunked import ChunkedSource


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def skipping(path: Path) -> ChunkedSource:
    source = open_source(path, on_bad="skip")
    assert isinstance(source, ChunkedSource)
    return source


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.parquet: no such file or folder"):
        open_source(tmp_path / "none.parquet")
    with pytest.raises(FileNotFoundError, match=r"\*\.parquet: matches no file"):
        open_source(str(tmp_path / "*.parquet"))
    with pytest.raises(FileNotFoundError, match="holds no data files"):
        open_source(tmp_path)


def test_formats_are_not_guessed_or_mixed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 2 3")
    (tmp_path / "a.jsonl").write_text('{"input_ids": [1]}\n')
    with pytest.raises(ValueError, match=r"unknown format '.txt'"):
        open_source(tmp_path / "a.txt")
    with pytest.raises(ValueError, match="one format"):
        open_source([parquet(tmp_path / "a.parquet", input_ids=[[1]]), tmp_path / "a.jsonl"])


def test_what_has_no_rows_by_number_is_refused() -> None:
    stream = datasets.Dataset.from_dict({"input_ids": [[1]]}).to_iterable_dataset()
    with pytest.raises(TypeError, match="rows by number"):
        open_source(stream)


def test_u42_a_parquet_file_cut_by_ten_bytes_is_found_when_it_is_opened(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "whole.parquet", input_ids=[[1, 2]])
    (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"cut\.parquet: the footer cannot be read .* cut short"):
        open_source([whole, tmp_path / "cut.parquet"])
    (tmp_path / "empty.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match=r"empty\.parquet: the footer cannot be read"):
        open_source(tmp_path / "empty.parquet")


def test_a_broken_row_group_is_named(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", input_ids=[list(range(2000))])
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"a\.parquet: the row group 0 cannot be read"):
        open_source(path).lengths()


def test_u43_a_missing_or_mistyped_column_is_named(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", tokens=[[1]], text=["x"], floats=[[0.5]])
    with pytest.raises(ValueError, match=r"a\.parquet: no column 'input_ids'; the columns are tokens, text"):
        open_source(path).lengths()
    with pytest.raises(
        ValueError, match=r"a\.parquet: column 'text' must be a list of integers, it is string"
    ):
        open_source(path, column="text").lengths()
    with pytest.raises(ValueError, match=r"must be a list of integers, it is list<.*double"):
        open_source(path, column="floats").lengths()
    with pytest.raises(ValueError, match="no column 'mask'"):
        open_source(path, column="tokens", labels="mask").lengths()


def test_u43_null_and_empty_rows_are_counted_and_have_no_tokens(tmp_path: Path) -> None:
    source = open_source(parquet(tmp_path / "a.parquet", input_ids=[[1], None, [], None, [2, 3]]))
    assert source.lengths().tolist() == [1, 0, 0, 0, 2]
    assert source.null_rows() == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("wrong", [-1, 2**31, 2**40])
def test_u43_ids_out_of_range_are_refused_with_their_row(tmp_path: Path, wrong: int) -> None:
    rows = [[1, 2], [3], [4, wrong, 5]]
    path = parquet(tmp_path / "a.parquet", input_ids=rows)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    with pytest.raises(
        ValueError, match=rf"a\.parquet, row 2: token ids must be 0\.\.2147483647, there is {wrong}"
    ):
        open_source(path).lengths()
    with pytest.raises(ValueError, match=rf"a\.jsonl, line 3 \(byte 41\): token ids .* there is {wrong}"):
        open_source(tmp_path / "a.jsonl").lengths()
    with pytest.raises(ValueError, match=rf"row 2: .* there is {wrong}"):
        open_source(datasets.Dataset.from_dict({"input_ids": rows})).read(np.array([0, 2]))
    with pytest.raises(ValueError, match=r"sample 2: .* there is"):
        open_source([{"input_ids": row} for row in rows]).lengths()


def test_ids_above_the_vocabulary_are_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", input_ids=[[1, 99], [100]])
    assert open_source(path, vocab_size=101).lengths().tolist() == [2, 1]
    with pytest.raises(ValueError, match=r"row 1: token ids must be 0\.\.99, there is 100"):
        open_source(path, vocab_size=100).lengths()


def test_a_null_among_the_tokens_is_refused_and_skipped(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", input_ids=[[1], [2, None], [3]])
    with pytest.raises(ValueError, match=r"a\.parquet, row 1: column 'input_ids' holds a null"):
        open_source(path).lengths()
    source = skipping(path)
    assert source.lengths().tolist() == [1, 0, 1]
    assert [str(reject) for reject in source.rejects()] == [
        f"{path}, row 1: column 'input_ids' holds a null among its values"
    ]
    assert source.null_rows() == 0


def test_labels_of_another_length_are_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", input_ids=[[1], [2, 3]], labels=[[1], [3]])
    with pytest.raises(ValueError, match="row 1: 2 tokens but 1 values in 'labels'"):
        open_source(path).lengths()
    assert skipping(path).lengths().tolist() == [1, 0]


def test_u42_each_bad_line_is_named_by_line_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = b'{"input_ids": [1, 2]}'
    content = (
        b"\xef\xbb\xbf" + good + b"\r\n\r\n" + b'{"input_ids": [1, 2\n' + b"[1, 2]\n" + b'{"input_ids": [7]}'
    )
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.jsonl, line 3 \(byte {3 + len(good) + 4}\): not JSON"):
        open_source(path).lengths()
    source = skipping(path)
    assert source.lengths().tolist() == [2, 0, 0, 1]
    assert source.read(np.array([0, 3])).input_ids.tolist() == [1, 2, 7]
    origins = [reject.origin for reject in source.rejects()]
    assert origins == [
        f"{path}, line 3 (byte {3 + len(good) + 4})",
        f"{path}, line 4 (byte {3 + len(good) + 24})",
    ]
    assert "an array" in source.rejects()[1].reason


def test_a_bad_line_is_told_without_its_whole_content(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"input_ids": "' + "x" * 10_000 + '"}\n{"input_ids": [1]}\n')
    with pytest.raises(ValueError, match=r"line 1 .*must be a list of integers") as caught:
        open_source(tmp_path / "a.jsonl").lengths()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "line",
    ['{"input_ids": [1.5]}', '{"input_ids": ["1"]}', '{"input_ids": {"a": 1}}', '{"input_ids": 5}', "\xff"],
)
def test_lines_with_other_values_are_skipped_and_told(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        b'{"input_ids": [1]}\n' + line.encode("latin-1") + b'\n{"input_ids": [2]}\n'
    )
    source = skipping(tmp_path / "a.jsonl")
    assert source.lengths().tolist() == [1, 0, 1]
    assert len(source.rejects()) == 1


def test_two_objects_on_a_line_are_no_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"input_ids": [1]}{"input_ids": [2]}\n{"input_ids": [3]}\n')
    with pytest.raises(ValueError, match=r"line 1 \(byte 0\): not JSON"):
        open_source(tmp_path / "a.jsonl").lengths()


def test_u42_a_compressed_file_cut_in_the_middle_is_named(tmp_path: Path) -> None:
    text = "".join(json.dumps({"input_ids": list(range(n % 50))}) + "\n" for n in range(2000)).encode()
    packed = gzip.compress(text)
    (tmp_path / "a.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz: cannot be unpacked behind byte .*cut short"):
        open_source(tmp_path / "a.jsonl.gz").lengths()


def test_an_arrow_file_cut_short_is_named(tmp_path: Path) -> None:
    rows = pa.table({"input_ids": [[1, 2]] * 1000})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), rows.schema) as writer:
        writer.write_table(rows)
    content = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"a\.arrow: the Arrow data cannot be read"):
        open_source(tmp_path / "a.arrow").lengths()


def test_a_megatron_index_must_fit_its_tokens(tmp_path: Path) -> None:
    from loaders.packing_job.megatron import write_index

    (tmp_path / "a.bin").write_bytes(b"\0" * 8)
    write_index(tmp_path / "a.idx", np.array([3], np.int32), np.array([1]))
    with pytest.raises(ValueError, match=r"a\.bin: the index needs 12 bytes, the file has 8"):
        open_source(tmp_path / "a.idx").lengths()
    (tmp_path / "b.idx").write_bytes(b"something else altogether, long enough to be one")
    with pytest.raises(ValueError, match="not an index"):
        open_source(tmp_path / "b.idx").lengths()


def test_a_split_must_be_chosen(tmp_path: Path) -> None:
    both = datasets.Dataset.from_dict({"input_ids": [[1]]})
    datasets.DatasetDict({"train": both, "test": both}).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(ValueError, match=r"several splits; name one: .*/train, .*/test"):
        open_source(tmp_path / "saved")
    assert len(open_source(tmp_path / "saved" / "test")) == 1


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ({"ids": [1]}, "no entry 'input_ids'; there are ids"),
        ({"input_ids": [0.5]}, "must be a list of integers"),
        ({"input_ids": [[1]]}, "must be a list of integers"),
        ({"input_ids": [1, 2], "labels": [1]}, "2 tokens but 1 labels"),
    ],
)
def test_samples_of_a_torch_dataset_are_checked(sample: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=rf"list, sample 1: .*{reason}"):
        open_source([{"input_ids": [1]}, sample]).lengths()


def test_lengths_given_for_a_torch_dataset_must_be_one_a_sample() -> None:
    with pytest.raises(ValueError, match="must hold 2 integers, one a sample"):
        open_source([{"input_ids": [1]}, {"input_ids": [2]}], length=[1]).lengths()
