"""What users are told who give something wrong: a sentence with what must hold, what came, and where."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from balancer import CostModel, Topology
from loaders import DataLoader, Mixture, open_source
from loaders.cli.app import app, main
from loaders.cli.errors import EXPECTED, sentence
from loaders.media import MediaKind, MediaRules, PatchGrid, VideoGrid, WhisperFrames
from loaders.sources.multimodal import MultimodalSource
from tests.loaders.arrays import ArraySource

ROWS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [10]]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a good file."""
    monkeypatch.chdir(tmp_path)
    write("good.parquet", input_ids=ROWS, length=[len(row) for row in ROWS])
    return tmp_path


def write(name: str, **columns: Any) -> None:
    pq.write_table(pa.table(columns), name)


def told(*arguments: str) -> tuple[int, str]:
    """(exit code, what stands on stderr); anything but a sentence is raised."""
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is None or isinstance(result.exception, SystemExit):
        return result.exit_code, " ".join(result.stderr.split())
    assert isinstance(result.exception, EXPECTED), result.exception  # what the command tells in a sentence
    return 1, sentence(result.exception)


PLAN = ("plan", "good.parquet", "--ranks", "4", "--max-tokens", "100")
SIMULATE = ("simulate", *PLAN[1:])
REPORT = ("report", *PLAN[1:])
INSPECT = ("inspect", "good.parquet", "--max-tokens", "100")
PACK = ("pack", "good.parquet", "-o", "out", "--max-tokens", "100")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*PLAN, "--policies", "balancd"), "Did you mean 'balanced'?"),
        ((*PLAN, "--policies", "balanced,balanced"), "balanced is there twice"),
        ((*PLAN, "--sync", "setp"), "Did you mean 'step'?"),
        ((*PLAN, "--cost", "genric"), "Did you mean 'generic'?"),
        ((*PLAN, "--column", "input_id"), "Did you mean 'input_ids'?"),
        ((*PLAN, "--length", "lenght"), "Did you mean 'length'?"),
        ((*SIMULATE, "--policies", "balancd"), "Did you mean 'balanced'?"),
        ((*SIMULATE, "--gpu", "h1000"), "Did you mean 'h100'?"),
        ((*REPORT, "--recompute", "ful"), "Did you mean 'full'?"),
        ((*INSPECT, "--oversize", "eror"), "Did you mean 'error'?"),
        ((*INSPECT, "--column", "input_idz"), "Did you mean 'input_ids'?"),
        ((*PACK, "--strategy", "bestfit"), "Did you mean 'best_fit'?"),
        ((*PACK, "--format", "parq"), "Did you mean 'parquet'?"),
        ((*PACK, "--engine", "locl"), "Did you mean 'local'?"),
        ((*PACK, "--columns", "label"), "Did you mean 'labels'?"),
    ],
)
def test_a_misspelt_name_on_the_command_line_is_told_the_nearest(
    data: Path, arguments: tuple[str, ...], message: str
) -> None:
    code, text = told(*arguments)
    assert code in (1, 2)
    assert message in text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: loader(policy="balancd"), "'balanced'"),
        (lambda: loader(sync="microbatch"), "'micro_batch'"),
        (lambda: loader(oversize="spilt"), "'split'"),
        (lambda: loader(engine="rya"), "'ray'"),
        (lambda: loader(on_error="skipp"), "'skip'"),
        (lambda: open_source("good.parquet", column="Input_IDs").lengths(), "'input_ids'"),
        (lambda: open_source("good.parquet", length="lengths").lengths(), "'length'"),
        (lambda: Mixture({"web": "good.parquet"}, {"wbe": 1}), "'web'"),
        (lambda: Mixture({"web": "good.parquet"}, by="token"), "'tokens'"),
        (lambda: Mixture({"web": "good.parquet"}, stop="all_exhaust"), "'all_exhausted'"),
        (lambda: CostModel.from_config({}, gpu="b2000"), "'b200'"),
        (lambda: CostModel.preset("flexsp-a100"), "'flexsp-a100-7b'"),
    ],
)
def test_a_misspelt_name_is_told_the_nearest(data: Path, make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"Did you mean {message}\?"):
        make()


def loader(**arguments: Any) -> DataLoader:
    return DataLoader(open_source("good.parquet"), batch_size=2, max_tokens=100, **arguments)


WRONG = {
    "half": 1.5,
    "nan": float("nan"),
    "true": True,
    "text": "x",
    "list": [],
    "dict": {},
    "object": object(),
    "huge": 2**70,
}
"""Nothing that could be a count, by a name that is the same in every process."""


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("name", ["seed", "micro_batches", "max_samples", "pad_to", "bos", "eos", "window"])
def test_arguments_that_are_no_numbers_are_named(data: Path, name: str, kind: str) -> None:
    if (name, kind) == ("seed", "huge"):
        return  # a seed of any size will do
    with pytest.raises((ValueError, TypeError), match=name):
        loader(**{name: WRONG[kind]})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"phases": {"vision": 1}}, r"phases\['vision'\] must be a balancer.Phase or a CostModel, got 1"),
        ({"phases": 5}, "phases must be a dict"),
        ({"topology": 0}, "topology must be a balancer.Topology"),
        ({"cost": ""}, "cost must be a cost model"),
        ({"device_mesh": "mesh"}, "device_mesh must be a torch DeviceMesh"),
        ({"collate_fn": "stack"}, "collate_fn must be a function"),
        ({"fill_media": "no"}, "fill_media must be True or False"),
        ({"group_media": "no"}, "group_media must be True or False"),
        ({"exchange": "no"}, "exchange must be True or False"),
    ],
)
def test_arguments_of_another_type_are_named(data: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        loader(**arguments)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("column", [None, "", 5, ["input_ids"]]),
        ("labels", [True, "", 5, ["labels"]]),
        ("carry", [None, "length", [5], 5]),
        ("vocab_size", [0, -1, 1.5, True, "many"]),
        ("on_bad", ["skipp", None]),
        ("cache", [None, 5]),
        ("shuffle_blocks", [-1, 1.5, True, "all"]),
        ("length", [5, ["length"]]),
    ],
)
def test_options_of_a_source_are_checked_before_a_file_is_opened(
    data: Path, name: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises((ValueError, TypeError), match=name):
            open_source("good.parquet", **{name: value})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"repeat": {"a": -1}}, "repeat must be a finite number of at least 0, 'a' has -1"),
        ({"repeat": {"a": float("nan")}}, "'a' has nan"),
        ({"repeat": 2}, "repeat of a Mixture must be a dict"),
        ({"weights": {"a": "much"}}, "weights must be finite"),
        ({"weights": 5}, "weights must be a dict"),
        ({"temperature": "hot"}, "temperature must be a finite number"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"stop": None}, "stop as a number of samples must be a whole number"),
    ],
)
def test_options_of_a_mixture_are_checked(data: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Mixture({"a": "good.parquet"}, **arguments)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (lambda step: None, "at step 0 it gave None"),
        (lambda step: {"a": 1, "b": 3}, "at step 0 weights names 'b'; the sources are a"),
        (lambda step: {"a": "much"}, "at step 0 the weights must be numbers"),
    ],
)
def test_what_a_function_of_the_step_gives_is_checked(data: Path, weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataLoader(Mixture({"a": "good.parquet"}, weights), batch_size=2, max_tokens=100)


# ------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.parquet", b"", "empty.parquet: not a whole parquet file"),
        ("cut.arrow", b"ARROW1\0\0" + b"\0" * 9, "cut.arrow: the Arrow data cannot be read"),
        ("list.jsonl", b"[1, 2]\n", "list.jsonl: every line must hold one JSON object, and line 1 does not"),
        ("pretty.json", b'[\n {"input_ids": [1]}\n]\n', "An array becomes one object a line"),
        ("cut.jsonl", b'{"input_ids": [1]}\n{"inp', "cut.jsonl, line 2"),
        ("empty.npy", b"", "empty.npy must be a whole array of numbers"),
        ("text.npy", b"hello", "text.npy must be a whole array of numbers"),
        ("words.txt", b"1\nhello\n", "words.txt must hold one number of tokens a line"),
        (
            "half.txt",
            b"1\n2.5\n",
            "half.txt: lengths must be whole numbers of tokens, they are float64, row 1",
        ),
        ("empty.csv", b"", "empty.csv must be a table with a line of names"),
        ("tokens.csv", b"input_ids\n1\n", "tokens.csv: a .csv can give lengths only"),
        ("mixture.yaml", b"sources: []", "Mixture.from_yaml"),
        ("odd.xyz", b"1", "odd.xyz: unknown format '.xyz'"),
    ],
)
def test_files_that_hold_something_else_are_named(
    data: Path, name: str, content: bytes, message: str
) -> None:
    Path(name).write_bytes(content)
    code, text = told("plan", name, "--ranks", "4", "--max-tokens", "100")
    assert code == 1
    assert message in text
    assert "Errno" not in text


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"length": ["a", "b"]}, "column 'length' must hold lengths, one number a row, it is string"),
        ({"length": [[1], [2]]}, "column 'length' must hold lengths, one number a row, it is list"),
        ({"length": [1.0, float("nan")]}, "lengths must be whole numbers of tokens, they are float64, row 1"),
        ({"length": [3, -1]}, "lengths must be 0..2147483647 tokens, row 1 has -1."),
        ({"tokens": [[1]]}, "neither a token column 'input_ids' nor a column of lengths; it has tokens"),
        ({"input_ids": ["a b"]}, "column 'input_ids' must be a list of integers, it is string"),
        ({"input_ids": [[1.5]]}, "must be a list of integers, it is list<element: double>"),
        ({"input_ids": [[1], [2, -3]]}, "x.parquet, row 1: token ids must be 0..2147483647, there is -3"),
        ({"input_ids": [[1, None]]}, "x.parquet, row 0: column 'input_ids' holds a null"),
        ({"input_ids": [[1, 2]], "labels": [[1]]}, "x.parquet, row 0: 2 tokens but 1 values in 'labels'"),
    ],
)
def test_columns_of_another_type_are_named(data: Path, columns: dict[str, Any], message: str) -> None:
    write("x.parquet", **columns)
    code, text = told("plan", "x.parquet", "--ranks", "4", "--max-tokens", "100")
    assert code == 1
    assert message in text


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        (
            "state.json",
            "{}",
            "state.json: not what datasets' save_to_disk writes, without a list '_data_files'",
        ),
        ("state.json", "no json", "state.json: not what datasets' save_to_disk writes"),
        ("dataset_dict.json", "[]", "dataset_dict.json: not what datasets' save_to_disk writes"),
        ("index.json", '{"shards": [1]}', "index.json, shard 0: shards of format None are not known"),
        ("index.json", '{"shards": [{"format": "mds"}]}', "index.json, shard 0 names no file"),
    ],
)
def test_folders_whose_index_is_damaged_are_named(data: Path, path: str, content: str, message: str) -> None:
    Path("folder").mkdir()
    Path("folder", path).write_text(content)
    with pytest.raises(ValueError, match="folder") as failure:
        open_source("folder")
    assert message in str(failure.value)


def test_a_missing_or_unreadable_file_that_an_option_names_is_told(data: Path) -> None:
    Path("folder.json").mkdir()
    Path("not.json").write_bytes(b"\xff\xfe")
    Path("list.json").write_text("[1]")
    Path("odd.json").write_text(json.dumps({"hidden_size": "big", "num_hidden_layers": 2}))
    for arguments, message in (
        ((*PLAN, "--cost", "none.json"), "none.json: there is no such cost model. Write one with"),
        ((*PLAN, "--cost", "folder.json"), "folder.json is a folder"),
        ((*PLAN, "--cost", "list.json"), "list.json is not a cost model: it holds no names"),
        ((*SIMULATE, "--model", "none.json"), "there is no none.json"),
        ((*SIMULATE, "--model", "folder.json"), "there is no folder.json/config.json"),
        ((*SIMULATE, "--model", "not.json"), "not.json is not JSON"),
        (
            (*SIMULATE, "--model", "odd.json"),
            "odd.json: the model config must have a whole number of at least 1",
        ),
        (("inspect", "none.yaml", "--max-tokens", "9"), "none.yaml: there is no such mixture file"),
        (("plan", "none.npy", *PLAN[2:]), "none.npy must be a file of lengths, it does not exist"),
        (("pack", "none", "--check"), "none must be the folder that evenload pack wrote, it does not exist"),
        (("pack", "good.parquet", "--check"), "good.parquet must be the folder that evenload pack wrote"),
    ):
        code, text = told(*arguments)
        assert code == 1
        assert message in text
        assert "Errno" not in text


def test_a_place_where_nothing_can_be_written_is_told_before_the_work(data: Path) -> None:
    Path("folder").mkdir()
    for arguments, message in (
        ((*PLAN, "--plot", "folder"), "--plot must name a file to write, folder is a folder"),
        ((*PLAN, "--plot", "steps"), "--plot must end in one of .png"),
        ((*PLAN, "--trace", "good.parquet/x.json"), "good.parquet is a file, no folder"),
        ((*REPORT, "--out", "folder"), "--out must name a file to write, folder is a folder"),
        ((*PACK, "--report", "folder"), "--report must name a file to write, folder is a folder"),
        (("calibrate", "torch.nn:Identity", "-o", "folder"), "--output must name a file to write"),
    ):
        code, text = told(*arguments)
        assert code == 2
        assert message in text
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*SIMULATE, "--straggler", "1:0.5", "--straggler", "1:0.7"), "must name each rank once"),
        ((*REPORT, "--gpu-memory", "80G"), "--gpu-memory only has an effect with --model"),
        ((*REPORT, "--recompute", "full"), "--recompute only has an effect with --model"),
        (("inspect", "mix.yaml", "--max-tokens", "9", "--column", "ids"), "--column and --length are of one"),
        (
            ("inspect", "mix.yaml", "good.parquet", "--max-tokens", "9"),
            "a mixture's file must be given alone",
        ),
        ((*PACK, "--eos", "</s>"), "eos names a token, which only a tokenizer can look up"),
        ((*PACK, "--text-column", "body"), "columns of text have no effect without a tokenizer"),
        ((*PACK, "--align", "128"), "align must not exceed max_tokens"),
        (("calibrate", "json:loads"), "json:loads failed when it was called without arguments: TypeError"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(
    data: Path, arguments: tuple[str, ...], message: str
) -> None:
    Path("mix.yaml").write_text("sources:\n - {name: a, path: good.parquet}\n")
    code, text = told(*arguments)
    assert code in (1, 2)
    assert message in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sources:\n\t- {name: a}\n", "not YAML"),
        ("by: tokens\nby: samples\nsources: []\n", "the key 'by' is there twice"),
        ("sources:\n - {name: a, path: good.parquet, weight: 1, weight: 2}\n", "'weight' is there twice"),
        ("sources: &s\n - {name: a, sources: *s}\n", "recursive"),
        ("sources:\n - {name: a, path: 5}\n", "mix.yaml: source 'a': a source needs rows by number"),
        ("sources:\n - {name: a, path: none.parquet}\n", "mix.yaml: source 'a': none.parquet: no such file"),
        ("sources:\n - {name: a, path: good.parquet, colum: x}\n", "Did you mean 'column'?"),
        (
            "sources:\n - {name: a, path: good.parquet, vocab_size: x}\n",
            "mix.yaml: source 'a': vocab_size must",
        ),
        ("stop:\nsources:\n - {name: a, path: good.parquet}\n", "mix.yaml: the mixture: stop"),
        (
            "temperature: hot\nsources:\n - {name: a, path: good.parquet}\n",
            "mix.yaml: the mixture: temperature",
        ),
        ("sources:\n - {name: a, path: good.parquet, repeat: -1}\n", "repeat must be a finite number"),
    ],
)
def test_a_mixtures_file_is_named_with_the_source_that_is_wrong(
    data: Path, content: str, message: str
) -> None:
    Path("mix.yaml").write_text(content)
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=r"mix\.yaml") as failure:
        Mixture.from_yaml("mix.yaml")
    assert message in str(failure.value)


def test_anchors_of_a_mixtures_file_may_be_merged_and_changed(data: Path) -> None:
    Path("mix.yaml").write_text("sources:\n - &a {name: a, path: good.parquet}\n - {<<: *a, name: b}\n")
    assert list(Mixture.from_yaml("mix.yaml").sources) == ["a", "b"]


def test_a_file_that_is_named_twice_is_told(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(open_source(["good.parquet", "good.parquet"])) == 2 * len(ROWS)
    assert "good.parquet is named 2 times" in caplog.text


def test_paths_with_spaces_and_other_letters_work(data: Path) -> None:
    Path("a b").mkdir()
    write("a b/gött.parquet", input_ids=ROWS)
    assert told("plan", "a b/gött.parquet", "--ranks", "2", "--max-tokens", "10") == (0, "")
    assert np.array_equal(open_source("a b").lengths(), [3, 2, 4, 1])


def test_more_ranks_than_the_memory_can_hold_are_told() -> None:
    with pytest.raises((MemoryError, ValueError)) as failure:
        np.zeros(Topology(ranks=10**15).ranks)
    assert "the memory does not suffice" in sentence(MemoryError(str(failure.value)))


# --------------------------------------------------------------------- U43: columns that differ


def test_u43_a_column_of_another_type_is_told_with_the_files_that_have_which(data: Path) -> None:
    for number in range(5):
        write(f"{number}.parquet", input_ids=ROWS)
    write("5.parquet", input_ids=["a", "b"])
    with pytest.raises(ValueError, match="differ") as failure:
        open_source([f"{number}.parquet" for number in range(6)]).lengths()
    text = str(failure.value)
    assert text.startswith("5.parquet: column 'input_ids' must be a list of integers, it is string")
    assert "input_ids: list<element: int64> in 0.parquet, 1.parquet, 2.parquet and 2 more" in text
    assert "input_ids: string in 5.parquet" in text
    assert "open those that differ as sources of their own" in text


def test_u43_a_column_that_some_files_lack_is_told_before_other_differences(data: Path) -> None:
    write("a.parquet", extra=[1], input_ids=[[1]], marks=[[1]])
    write("b.parquet", input_ids=[[1]])
    with pytest.raises(ValueError, match="no column 'marks'") as failure:
        open_source(["a.parquet", "b.parquet"], labels="marks").lengths()
    first, second, *_ = [line for line in str(failure.value).splitlines() if line.startswith("  ")]
    assert first == "  marks: list<element: int64> in a.parquet"
    assert second == "  marks: (not there) in b.parquet"


@pytest.mark.parametrize("suffix", ["arrow", "jsonl"])
def test_u43_other_formats_tell_the_differences_too(data: Path, suffix: str) -> None:
    for name, column in (("a", "input_ids"), ("b", "ids")):
        table = pa.table({column: ROWS})
        if suffix == "arrow":
            with pa.ipc.new_file(f"{name}.arrow", table.schema) as writer:
                writer.write_table(table)
        else:
            Path(f"{name}.jsonl").write_text("".join(json.dumps({column: row}) + "\n" for row in ROWS))
    with pytest.raises(ValueError, match=f"b.{suffix}: no column 'input_ids'") as failure:
        open_source([f"a.{suffix}", f"b.{suffix}"]).lengths()
    assert f"input_ids: (not there) in b.{suffix}" in str(failure.value)


def test_u43_files_that_agree_are_told_without_a_table(data: Path) -> None:
    for name in ("a", "b"):
        write(f"{name}.parquet", input_ids=["x"])
    with pytest.raises(ValueError, match="must be a list of integers") as failure:
        open_source(["a.parquet", "b.parquet"]).lengths()
    assert "differ" not in str(failure.value)


def test_u43_labels_that_only_some_files_have_are_told(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    write("with.parquet", input_ids=[[1, 2]], labels=[[-100, 2]])
    write("without.parquet", input_ids=[[1, 2]])
    with caplog.at_level(logging.WARNING):
        open_source(["with.parquet", "without.parquet"], cache=False).lengths()
        assert "with.parquet has a column of labels and without.parquet has none" in caplog.text
        caplog.clear()
        open_source(["with.parquet", "without.parquet"], labels=False, cache=False).lengths()
        open_source(["with.parquet", "with.parquet"], cache=False).lengths()
    assert "has none" not in caplog.text


# ------------------------------------------------------------------------- interrupts and pipes


@pytest.mark.parametrize("command", ["pack", "plan"])
def test_an_interrupt_ends_with_130_and_says_what_is_kept(
    data: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("loaders.packing_job.job.run", interrupted)
    monkeypatch.setattr("loaders.cli.lengths.read_lengths", interrupted)
    monkeypatch.setattr("sys.argv", ["evenload", *(PACK if command == "pack" else PLAN)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    text = capsys.readouterr().err
    assert "Interrupted." in text
    assert ("--resume goes on with it" in text) == (command == "pack")


@pytest.mark.parametrize(
    "arguments", [PLAN, (*PLAN, "--json"), ("version",)], ids=["table", "json", "version"]
)
def test_a_reader_that_went_away_leaves_no_traceback(data: Path, arguments: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "loaders.cli", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    text = process.stderr.read().decode()
    process.stderr.close()
    process.wait()
    assert "Traceback" not in text
    assert "Errno" not in text


def test_a_page_that_cannot_be_finished_is_not_there(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(found: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("loaders.reporting.page.page", interrupted)
    monkeypatch.setattr("balancer.plan.StepPlan.trace", lambda plan, path: interrupted(path.write_text("{")))
    told(*REPORT, "--steps", "1", "--search-steps", "1", "--cp-degrees", "1", "--out", "page.html")
    told(*PLAN, "--trace", "step.json")
    assert [path.name for path in data.iterdir()] == ["good.parquet"]


# ---------------------------------------------------------------------------------------- media


def images(**rules: Any) -> MediaRules:
    return MediaRules(image=MediaKind(column="images", token=9, rule=PatchGrid()), **rules)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PatchGrid(patch=0), "PatchGrid.patch must be a whole number of at least 1, got 0"),
        (lambda: PatchGrid(merge=1.5), "PatchGrid.merge must be a whole number"),
        (lambda: VideoGrid(fps=float("nan")), "VideoGrid.fps must be a finite number above 0, got nan"),
        (lambda: WhisperFrames(mels="80"), "WhisperFrames.mels must be a whole number"),
        (lambda: MediaKind(column="", token=9, rule=PatchGrid()), "MediaKind.column must name the column"),
        (lambda: MediaKind(column="a", token=-1, rule=PatchGrid()), "MediaKind.token must be a whole number"),
        (lambda: MediaKind(column="a", token=9, rule=14), "MediaKind.rule must say what media become"),
        (
            lambda: MediaKind(column="a", token=9, rule=PatchGrid(), wrap=(1,)),
            "MediaKind.wrap must be the ids",
        ),
        (lambda: images(max_units={"visoin": 5}, oversize="drop"), "Did you mean 'vision'?"),
        (lambda: images(max_units={"vision": -1}, oversize="drop"), "'vision' has -1"),
        (lambda: images(max_tokens=1.5, oversize="drop"), "MediaRules.max_tokens must be a whole number"),
        (lambda: images(max_bad=1.5), "max_bad must be a whole number of samples or a share"),
        (lambda: images(tolerance=-0.1), "MediaRules.tolerance must be a finite number of at least 0"),
        (lambda: images(tokens_per_second=0), "MediaRules.tokens_per_second must be a finite number above 0"),
        (lambda: images(look=5), "look must be a Look"),
        (lambda: images(on_bad="skipp"), "Did you mean 'skip'?"),
        (lambda: MultimodalSource("good.parquet", images()), "needs an opened source"),
        (lambda: MultimodalSource(open_source("good.parquet"), {"image": 1}), "rules must be MediaRules"),
        (lambda: MultimodalSource(open_source("good.parquet"), images(), threads=0), "threads must be"),
        (lambda: MultimodalSource(open_source("good.parquet"), images(), cache="."), "cache must be a file"),
    ],
)
def test_rules_of_media_are_checked_when_they_are_made(data: Path, make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as failure:
        make()
    assert message in str(failure.value)


def test_whole_numbers_of_numpy_are_as_good_as_pythons():
    source = ArraySource([3, 5, 2, 7])
    mixture = Mixture({"a": source}, seed=np.int64(2))
    arguments = {"max_tokens": np.int32(16), "batch_size": np.int64(2), "seed": np.int16(1)}
    arguments |= {"on_error": "skip", "max_errors": np.int64(3), "pad_to": np.array([16, 32])}
    batches = list(DataLoader(mixture, **arguments))
    assert batches[0]["input_ids"].shape == (1, 16)


def test_steps_that_would_be_nearly_empty_are_told(caplog):
    source = ArraySource([40] * 50)
    DataLoader(source, max_tokens=8192, shuffle=True)
    assert "a step of 1 samples of 40 tokens on average fills 0.5 % of max_tokens=8192" in caplog.text
    caplog.clear()
    DataLoader(source, max_tokens=8192, batch_size=50)
    DataLoader(source, max_tokens=64)
    assert caplog.text == ""


def test_text_where_token_ids_are_wanted_is_told_how_to_be_tokenised(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "some words"}\n')
    with pytest.raises(ValueError, match=r"the columns are text\. Text must be token ids"):
        open_source(tmp_path / "a.jsonl").lengths()
