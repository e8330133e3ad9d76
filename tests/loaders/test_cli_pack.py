"""``evenload pack``: every sample once, within the cap, told by its origin."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy.stats import spearmanr

from loaders.packing_job.check import check_folder
from loaders.packing_job.settings import DEFAULT_COLUMNS, EXTRA_COLUMNS, PackSettings
from loaders.packing_job.summary import counts_table
from loaders.sources import open_source
from packing import STRATEGIES
from packing import pack as pack_lengths
from tests.loaders.packing_runs import (
    digest,
    documents,
    pack,
    pack_all,
    rows_of,
    samples_of,
    write_lines,
    write_parquet,
)

CHEAP = sorted(set(STRATEGIES) - {"optimal"})


@pytest.fixture
def corpus(tmp_path: Path) -> list[str]:
    (tmp_path / "in").mkdir()
    return [
        write_parquet(tmp_path / "in" / "a.parquet", documents(300, 0)),
        write_parquet(tmp_path / "in" / "b.parquet", documents(200, 1)),
    ]


@pytest.mark.parametrize("strategy", CHEAP)
def test_every_sample_comes_once_with_its_origin(corpus: list[str], tmp_path: Path, strategy: str) -> None:
    manifest = pack(corpus, tmp_path / "out", strategy=strategy, max_tokens=256)
    rows = rows_of(tmp_path / "out", manifest)
    originals = [documents(300, 0), documents(200, 1)]
    samples = samples_of(rows)
    assert sorted((s[0], s[1]) for s in samples) == [(0, r) for r in range(300)] + [
        (1, r) for r in range(200)
    ]
    for source, row, start, ids, labels in samples:
        assert start == 0
        assert ids == originals[source][row]
        assert labels == [-100, *ids[1:]]
    for row in rows:
        assert len(row["input_ids"]) <= 256
        assert row["position_ids"] == [t for length in row["seq_lengths"] for t in range(length)]
    assert manifest["num_packs"] == len(rows)
    assert manifest["num_tokens"] == sum(len(row["input_ids"]) for row in rows)
    assert manifest["fill"] == pytest.approx(manifest["num_tokens"] / (len(rows) * 256))
    assert list(check_folder(tmp_path / "out"))


def test_one_window_packs_as_tightly_as_the_core(corpus: list[str], tmp_path: Path) -> None:
    manifest = pack(corpus, tmp_path / "out")
    lengths = [len(row) for row in documents(300, 0) + documents(200, 1)]
    whole = pack_lengths(lengths, 128)
    assert manifest["num_packs"] == len(whole)
    assert manifest["lower_bound"] == whole.lower_bound


@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=60).filter(any),
    cap=st.integers(8, 40),
    oversize=st.sampled_from(["drop", "truncate", "truncate_left", "split"]),
    align=st.sampled_from([1, 4]),
    window=st.sampled_from([16, 1 << 20]),
)
def test_u01_kept_cut_and_dropped_tokens_make_up_all(
    lengths: list[int],
    cap: int,
    oversize: str,
    align: int,
    window: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if oversize == "drop" and not any(0 < n <= cap for n in lengths):
        return
    path = tmp_path_factory.mktemp("run")
    rows = [list(range(1, n + 1)) for n in lengths]
    source = write_parquet(path / "a.parquet", rows, group=5)
    cap = cap // align * align
    manifest = pack(
        [source], path / "out", max_tokens=cap, oversize=oversize, align=align, window_tokens=window
    )
    counts = manifest["counts"]
    assert counts["rows"] == len(lengths)
    assert counts["rows"] == counts["kept"] + counts["dropped"] + counts["empty"]
    assert counts["tokens"] == sum(lengths) == counts["kept_tokens"] + counts["cut_tokens"]
    assert counts["kept_tokens"] == manifest["num_tokens"]
    packed = rows_of(path / "out", manifest)
    assert all(len(row["input_ids"]) <= cap for row in packed)
    held = Counter(row for p in packed for row in p["row_ids"])
    limit = {"drop": lambda n: 0 < n <= cap}.get(oversize, lambda n: n > 0)
    assert set(held) == {row for row, n in enumerate(lengths) if limit(n)}
    if oversize == "split":
        assert sum(sum(p["seq_lengths"]) for p in packed) == sum(lengths)
    assert list(check_folder(path / "out"))


def test_u01_the_smallest_inputs(tmp_path: Path) -> None:
    rows = [[1] * n for n in (5, 2, 3, 1)]
    source = write_parquet(tmp_path / "a.parquet", rows)
    with pytest.raises(
        ValueError, match=r"1 of 4 samples are longer than max_tokens 4; .*a\.parquet, row 0 has 5"
    ):
        pack([source], tmp_path / "error", max_tokens=4)
    pack(
        [source], tmp_path / "error", max_tokens=4, oversize="drop"
    )  # nothing stands in the way of a second try
    counts = {
        how: pack([source], tmp_path / how, max_tokens=4, oversize=how)["counts"]
        for how in ("drop", "truncate", "split")
    }
    assert (counts["drop"]["kept_tokens"], counts["drop"]["dropped"], counts["drop"]["cut_tokens"]) == (
        6,
        1,
        5,
    )
    assert (counts["truncate"]["kept_tokens"], counts["truncate"]["truncated"]) == (10, 1)
    assert counts["split"]["kept_tokens"] == 11
    assert json.loads((tmp_path / "split" / "manifest.json").read_text())["num_packs"] == 3
    long = write_parquet(tmp_path / "long.parquet", [list(range(121))])
    manifest = pack([long], tmp_path / "pieces", max_tokens=60, oversize="split")
    pieces = sorted((s[2], len(s[3])) for s in samples_of(rows_of(tmp_path / "pieces", manifest)))
    assert pieces == [(0, 60), (60, 60), (120, 1)]


def test_truncation_keeps_the_end_it_is_told_to(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "a.parquet", [list(range(10))])
    for how, kept, start in (("truncate", list(range(6)), 0), ("truncate_left", list(range(4, 10)), 4)):
        rows = rows_of(tmp_path / how, pack([source], tmp_path / how, max_tokens=6, oversize=how))
        assert rows[0]["input_ids"] == kept
        assert rows[0]["row_starts"] == [start]


def test_u05_masks_and_carried_columns_follow_their_tokens(tmp_path: Path) -> None:
    rows = [[10, 11, 12, 13, 14, 15], [20, 21, 2, 23, 24]]
    masks = [[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1]]
    weights = [[n / 10 for n in row] for row in rows]
    source = write_parquet(
        tmp_path / "a.parquet",
        rows,
        loss_mask=masks,
        weight=weights,
        name=["one", "two"],
        nested=[{"deep": [1]}, {"deep": [2, 3]}],
    )
    manifest = pack(
        [source],
        tmp_path / "out",
        max_tokens=16,
        strategy="next_fit",
        carry=("weight", "name", "nested"),
        columns=(*DEFAULT_COLUMNS, *EXTRA_COLUMNS),
        align=8,
        pad_id=2,
    )
    (row,) = rows_of(tmp_path / "out", manifest)
    assert [t for t, label in enumerate(row["labels"]) if label != -100] == [4, 5, 10, 11, 12]
    assert row["loss_mask"] == [int(label != -100) for label in row["labels"]]
    assert row["input_ids"] == [*rows[0], 2, 2, *rows[1], 2, 2, 2]
    assert row["weight"] == [*weights[0], None, None, *weights[1], None, None, None]
    assert row["name"] == ["one", "two"]
    assert row["nested"] == [{"deep": [1]}, {"deep": [2, 3]}]
    assert (row["seq_lengths"], row["padded_lengths"]) == ([6, 5], [8, 8])
    assert (row["cu_seqlens"], row["cu_seqlens_padded"]) == ([0, 6, 11], [0, 8, 16])
    assert row["sample_numbers"] == [0] * 8 + [1] * 8
    assert row["position_ids"] == [*range(8), *range(8)]


def test_positions_may_start_elsewhere(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "a.parquet", [[1, 2], [3]])
    manifest = pack([source], tmp_path / "out", position_start=2, strategy="next_fit")
    assert rows_of(tmp_path / "out", manifest)[0]["position_ids"] == [2, 3, 2]


def test_u07_packs_do_not_come_sorted_by_length(tmp_path: Path) -> None:
    rows = [[1] * (1 + row // 20) for row in range(2_000)]
    source = write_parquet(tmp_path / "a.parquet", rows)
    packed = rows_of(tmp_path / "out", pack([source], tmp_path / "out", max_tokens=400))
    means = [np.mean(row["seq_lengths"]) for row in packed]
    assert abs(spearmanr(range(len(means)), means).statistic) < 0.1
    kept = rows_of(tmp_path / "kept", pack([source], tmp_path / "kept", max_tokens=400, strategy="next_fit"))
    assert [row for pack in kept for row in pack["row_ids"]] == list(range(2_000))


def test_order_is_kept_over_windows_too(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "a.parquet", documents(300))
    manifest = pack([source], tmp_path / "out", strategy="next_fit", window_tokens=1)
    rows = rows_of(tmp_path / "out", manifest)
    assert [row for pack in rows for row in pack["row_ids"]] == list(range(300))


def test_u14_samples_that_truncation_leaves_without_labels_are_dropped_and_counted(tmp_path: Path) -> None:
    rows = [[1] * 210] * 3 + [[1] * 50] * 4 + [[1] * 40]
    masks = [[0] * 200 + [1] * 10] * 3 + [[0] * 20 + [1] * 30] * 4 + [[0] * 40]
    source = write_parquet(tmp_path / "a.parquet", rows, loss_mask=masks)
    counts = pack([source], tmp_path / "out", max_tokens=64, oversize="truncate")["counts"]
    assert (counts["unlabelled"], counts["masked"], counts["kept"]) == (3, 1, 5)
    kept = pack([source], tmp_path / "kept", max_tokens=64, oversize="truncate", keep_unlabelled=True)[
        "counts"
    ]
    assert (kept["unlabelled"], kept["kept"], kept["truncated"]) == (0, 8, 3)
    left = pack([source], tmp_path / "left", max_tokens=64, oversize="truncate_left")["counts"]
    assert (left["unlabelled"], left["truncated"]) == (0, 3)
    nothing = write_parquet(tmp_path / "b.parquet", rows[:3], loss_mask=masks[:3])
    with pytest.raises(ValueError, match=r"nothing is left to pack .* of 3 rows, 3 unlabelled are left out"):
        pack([nothing], tmp_path / "nothing", max_tokens=64, oversize="truncate")
    masked = write_parquet(tmp_path / "c.parquet", rows[7:], loss_mask=masks[7:])
    with pytest.raises(ValueError, match="no label is left"):
        pack([masked], tmp_path / "masked", max_tokens=64)


def test_several_caps_come_out_of_one_run(corpus: list[str], tmp_path: Path) -> None:
    manifests = pack_all(corpus, tmp_path / "out", max_tokens=(128, 512))
    assert [manifest["max_tokens"] for manifest in manifests] == [128, 512]
    for manifest in manifests:
        folder = tmp_path / "out" / str(manifest["max_tokens"])
        alone = pack(corpus, tmp_path / f"alone{manifest['max_tokens']}", max_tokens=manifest["max_tokens"])
        assert manifest["files"] == alone["files"]
        assert list(check_folder(folder))


def test_the_same_run_gives_the_same_bytes_and_another_seed_other_packs(
    corpus: list[str], tmp_path: Path
) -> None:
    one = pack(corpus, tmp_path / "one")
    two = pack(corpus, tmp_path / "two")
    three = pack(corpus, tmp_path / "three", seed=1)
    assert one["files"] == two["files"] != three["files"]
    assert three["num_packs"] == one["num_packs"]


def test_windows_cost_few_packs_and_lose_nothing(corpus: list[str], tmp_path: Path) -> None:
    whole = pack(corpus, tmp_path / "whole", max_tokens=128)
    settings = {"window_tokens": 1, "max_tokens": 128}
    windowed = pack([*corpus * 20], tmp_path / "windowed", **settings)
    assert len(windowed["files"]) > 1
    assert windowed["num_tokens"] == 20 * whole["num_tokens"]
    assert windowed["num_packs"] <= windowed["lower_bound"] * 1.01 + len(windowed["files"])


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_datasets_opens_the_output(corpus: list[str], tmp_path: Path, kind: str) -> None:
    manifest = pack(corpus, tmp_path / "out", format=kind)
    if kind == "parquet":
        loaded = datasets.load_dataset(
            str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache")
        )
    else:
        loaded = datasets.load_from_disk(str(tmp_path / "out"))
    assert len(loaded) == manifest["num_packs"]
    assert set(DEFAULT_COLUMNS) == set(loaded.column_names)
    assert sum(map(len, loaded["input_ids"])) == manifest["num_tokens"]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "megatron", "plan"])
def test_every_format_opens_as_the_samples_it_holds(corpus: list[str], tmp_path: Path, kind: str) -> None:
    manifest = pack(corpus, tmp_path / "out", format=kind)
    source = open_source(tmp_path / "out")
    found = source.read(np.arange(len(source)))
    bounds = found.offsets.tolist()
    samples = sorted(found.input_ids[a:b].tolist() for a, b in pairwise(bounds))
    assert samples == sorted(documents(300, 0) + documents(200, 1))
    assert source.lengths().tolist() == np.diff(found.offsets).tolist()
    assert list(check_folder(tmp_path / "out"))
    if kind != "megatron":
        offsets = source.pack_offsets()  # type: ignore[attr-defined]
        assert len(offsets) == manifest["num_packs"] + 1
        totals = np.add.reduceat(source.lengths(), offsets[:-1])
        assert totals.max() <= 128


def test_packs_of_one_size_can_be_packed_again(corpus: list[str], tmp_path: Path) -> None:
    pack(corpus, tmp_path / "small", max_tokens=128, align=4)
    manifest = pack([str(tmp_path / "small")], tmp_path / "large", max_tokens=1024)
    assert sorted(s[3] for s in samples_of(rows_of(tmp_path / "large", manifest))) == sorted(
        documents(300, 0) + documents(200, 1)
    )


def test_a_plan_keeps_masks_and_pieces(tmp_path: Path) -> None:
    rows = documents(50)
    masks = [[int(t % 2) for t in row] for row in rows]
    source = write_parquet(tmp_path / "a.parquet", rows, loss_mask=masks)
    pack([source], tmp_path / "out", format="plan", oversize="split", max_tokens=32)
    planned = open_source(tmp_path / "out")
    found = planned.read(np.arange(len(planned)))
    assert found.labels is not None
    assert found.labels.tolist() == [t if t % 2 else -100 for t in found.input_ids.tolist()]
    labels = found.labels
    counted = [
        (labels[a + 1 : b] != -100).sum() for a, b in zip(found.offsets[:-1], found.offsets[1:], strict=True)
    ]
    assert planned.loss_tokens().tolist() == counted


def test_lines_are_packed_in_several_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loaders.packing_job.inputs.TASK_BYTES", 1000)
    rows = documents(200)
    source = write_lines(tmp_path / "a.jsonl", [{"input_ids": row} for row in rows])
    manifest = pack([source], tmp_path / "out")
    samples = samples_of(rows_of(tmp_path / "out", manifest))
    assert sorted((s[1], s[3]) for s in samples) == list(enumerate(rows))
    assert open_source(source).read(np.array([150])).input_ids.tolist() == rows[150]


def test_u11_bad_rows_are_left_out_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loaders.packing_job.inputs.TASK_BYTES", 4000)
    lines = [json.dumps({"input_ids": row}) for row in documents(1000)]
    lines[500] = '{"input_ids": [1, 2'
    lines[700] = "[1]"
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    manifest = pack([str(tmp_path / "a.jsonl")], tmp_path / "out")
    assert (manifest["counts"]["kept"], manifest["counts"]["rejected"]) == (998, 2)
    rejects = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert ["line 501" in rejects[0]["origin"], "line 701" in rejects[1]["origin"]] == [True, True]
    with pytest.raises(ValueError, match=r"a\.jsonl, line 501 \(byte \d+\): not JSON"):
        pack([str(tmp_path / "a.jsonl")], tmp_path / "strict", strict=True)
    lines[:100] = ["{"] * 100
    (tmp_path / "b.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"102 of 1000 rows cannot be used, more than 5\.0%.*--max-rejects"):
        pack([str(tmp_path / "b.jsonl")], tmp_path / "many")


def test_u59_null_empty_and_long_rows_are_counted_by_input(tmp_path: Path) -> None:
    one = write_parquet(tmp_path / "a.parquet", [[1] * 200, [1], None, [], [2, 3]])
    two = write_parquet(tmp_path / "b.parquet", [[1], [1] * 300, [1] * 400])
    manifest = pack([one, two], tmp_path / "out", oversize="drop")
    a, b = manifest["by_source"].values()
    assert [a[key] for key in ("rows", "kept", "dropped", "empty", "null")] == [5, 2, 1, 1, 1]
    assert [b[key] for key in ("rows", "kept", "dropped", "cut_tokens")] == [3, 1, 2, 700]
    report = (tmp_path / "out" / "report.html").read_text()
    assert "b.parquet" in report
    assert "<script" not in report
    assert "http" not in report


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"strategy": "bestfit"}, "Did you mean 'best_fit'"),
        ({"oversize": "cut"}, "oversize must be one of"),
        ({"format": "plan", "carry": ("x",)}, "have no effect"),
        ({"format": "megatron", "align": 2}, "align must be 1"),
        ({"format": "arrow", "compression": "snappy"}, "no effect on format arrow"),
        ({"max_tokens": (8, 8)}, "twice"),
        ({"max_tokens": ()}, "max_tokens must be"),
        ({"max_rejects": 2.0}, "0..1"),
        ({"columns": ("input_id",)}, "Did you mean 'input_ids'"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any], message: str) -> None:
    chosen: dict[str, Any] = {"inputs": ("a",), "output": "o", "max_tokens": (8,), **wrong}
    with pytest.raises(ValueError, match=message):
        PackSettings(**chosen)


def test_megatron_has_no_place_for_masks(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "a.parquet", [[1, 2, 3]], loss_mask=[[0, 0, 1]])
    with pytest.raises(ValueError, match="no place for a loss mask"):
        pack([source], tmp_path / "out", format="megatron")
    pack([source], tmp_path / "all", format="megatron", labels=False)


def test_check_finds_what_was_changed(corpus: list[str], tmp_path: Path) -> None:
    manifest = pack(corpus, tmp_path / "out")
    (name,) = manifest["files"]
    content = (tmp_path / "out" / name).read_bytes()
    (tmp_path / "out" / name).write_bytes(content[:-1] + b"x")
    with pytest.raises(ValueError, match="size or sha256 differs"):
        list(check_folder(tmp_path / "out"))
    (tmp_path / "out" / name).unlink()
    with pytest.raises(ValueError, match="is missing"):
        list(check_folder(tmp_path / "out"))
    with pytest.raises(ValueError, match="not the output of evenload pack"):
        list(check_folder(tmp_path / "in"))


def test_workers_do_not_change_a_byte(
    corpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loaders.packing_job.inputs.TASK_BYTES", 4000)
    options: dict[str, Any] = {"max_tokens": 128, "window_tokens": 1}
    pack(corpus, tmp_path / "one", workers=1, **options)
    pack(corpus, tmp_path / "three", workers=3, **options)
    one, three = digest(tmp_path / "one"), digest(tmp_path / "three")
    same = {name for name in one if name.endswith(".parquet")}
    assert same
    assert {name: one[name] for name in same} == {name: three[name] for name in same}


def test_the_summary_tells_inputs_apart_and_cuts_no_number_on_80_columns(tmp_path: Path) -> None:
    inputs = [write_parquet(tmp_path / f"{name}.parquet", [[1] * 200, [1] * 100]) for name in "ab"]
    manifest = pack(inputs, tmp_path / "out", oversize="drop")
    for account in manifest["by_source"].values():
        account["tokens"] = account["kept_tokens"] = 1_234_567
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(counts_table(manifest))
    shown = console.export_text()
    assert shown.count("1,234,567") == 4
    assert "a.parquet" in re.sub(r"[^\w.]", "", shown)
    assert "…" not in shown
