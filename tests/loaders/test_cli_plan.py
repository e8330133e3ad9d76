import json
import sys
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from balancer import CostModel, Topology, plan_step
from balancer.comparison import compare_policies, shuffled_steps
from balancer.cost import GPUS
from loaders.cli import app as cli_app
from loaders.cli.app import app
from loaders.cli.costs import FREE, UNPRICED, cost_model, parse_cost, parse_gpu
from loaders.cli.errors import told_warnings
from loaders.cli.lengths import FileLengths, read_lengths
from loaders.cli.plan import parse_degrees, plan
from loaders.cli.plan_report import admit

APP = typer.Typer()
APP.command()(plan)
RUN = CliRunner(env={"COLUMNS": "160"})
LENGTHS = [700, 30, 30, 500, 0, 90, 1500, 42, 1024, 8]


def run(path, *arguments):
    return RUN.invoke(APP, [str(path), "--ranks", "2", "--max-tokens", "1024", *arguments])


@pytest.fixture
def lengths_file(tmp_path):
    path = tmp_path / "lengths.parquet"
    pq.write_table(pa.table({"num_tokens": LENGTHS, "text": ["x"] * len(LENGTHS)}), path)
    return path


def test_json_holds_what_the_planner_predicts(lengths_file):
    result = run(lengths_file, "--json", "--cost", "1e-4,1e-7,0.01", "--policies", "balanced")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    kept = np.array([n for n in LENGTHS if 0 < n <= 1024])
    rows = shuffled_steps(kept.size, kept.size)[0]
    expected = plan_step(
        kept[rows], topology=Topology(ranks=2), max_tokens=1024, cost=CostModel(1e-4, 1e-7, 0.01)
    )
    balanced = report["policies"]["balanced"]
    assert balanced["step_time_s"] == expected.time_s
    assert balanced["gap"] == pytest.approx(expected.gap)
    assert balanced["imbalance"] == pytest.approx(expected.imbalance)
    assert balanced["tokens_per_s"] == pytest.approx(kept.sum() / expected.time_s)
    idle = 1 - expected.rank_time_s.sum() / (2 * expected.time_s)
    assert balanced["idle"] == pytest.approx(idle, abs=1e-12)


def test_samples_that_cannot_fit_and_empty_ones_are_listed(lengths_file):
    report = json.loads(run(lengths_file, "--json").stdout)
    assert report["cannot_fit"] == [{"origin": f"{lengths_file}, row 6", "row": 6, "tokens": 1500}]
    assert (report["empty"], report["samples"], report["tokens"]) == (1, 8, sum(LENGTHS) - 1500)
    text = run(lengths_file).stdout
    assert "row 6: 1,500 tokens" in "".join(text.split("\n"))
    assert "Raise --max-tokens" in text


def test_the_table_has_every_policy_and_the_bound(lengths_file):
    result = run(lengths_file)
    assert result.exit_code == 0
    for word in ("balanced", "equal_samples", "equal_tokens", "proven bound", "tokens/s", "imbalance"):
        assert word in result.stdout


def test_the_generic_costs_times_are_called_arbitrary(lengths_file):
    assert "seconds are arbitrary" in run(lengths_file).stdout
    assert "seconds are arbitrary" not in run(lengths_file, "--cost", "1e-4").stdout


def test_an_epoch_is_cut_into_steps_that_hold_every_sample(lengths_file):
    report = json.loads(run(lengths_file, "--json", "--global-batch-size", "3", "--max-steps", "2").stdout)
    assert report["steps_in_epoch"] == 3
    assert report["policies"]["balanced"]["steps"] == 2
    assert report["policies"]["balanced"]["samples_by_degree"] == {"1": 6}
    rows = np.concatenate(shuffled_steps(100, 7, seed=3))
    assert sorted(rows.tolist()) == list(range(100))


def test_picture_and_trace_are_written(lengths_file, tmp_path):
    picture, trace = tmp_path / "plan.png", tmp_path / "plan.json"
    assert run(lengths_file, "--plot", str(picture), "--trace", str(trace)).exit_code == 0
    assert picture.stat().st_size > 1000
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_saved_cost_is_used(lengths_file, tmp_path):
    CostModel(3e-4, 1e-9, 0.5, source="measured here").save(tmp_path / "cost.json")
    report = json.loads(run(lengths_file, "--json", "--cost", str(tmp_path / "cost.json")).stdout)
    assert report["cost"]["source"] == "measured here"
    assert report["cost"]["fixed"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--cost", "fast"], "--cost must be a preset"),
        (["--cost", "1,2,3,4"], "three numbers"),
        (["--cost", "-1"], "linear"),
        (["--cost", "missing.json"], "missing.json"),
        (["--cp-degrees", "1,two"], "--cp-degrees"),
        (["--policies", "balanced,fair"], "got 'fair'"),
        (["--length", "nope"], "no column 'nope'; it has num_tokens, text"),
    ],
)
def test_bad_options_get_a_sentence(lengths_file, arguments, what):
    result = run(lengths_file, *arguments)
    assert result.exit_code == 1
    assert what in " ".join(result.stderr.split())


def test_a_degree_above_the_ranks_fails_with_the_planners_sentence(lengths_file):
    result = run(lengths_file, "--cp-degrees", "1,4")
    assert result.exit_code == 1
    assert "degree 4 needs 4 ranks" in " ".join(result.stderr.split())


def test_a_missing_file_is_named(tmp_path):
    result = run(tmp_path / "missing.parquet")
    assert result.exit_code == 1
    assert "missing.parquet" in result.stderr.replace("\n", "")


def test_lengths_are_read_from_each_kind_of_file(tmp_path):
    np.save(tmp_path / "a.npy", np.array(LENGTHS))
    (tmp_path / "a.txt").write_text("\n".join(map(str, LENGTHS)))
    (tmp_path / "a.csv").write_text("id,length\n" + "\n".join(f"s{i},{n}" for i, n in enumerate(LENGTHS)))
    table = pa.table({"length": LENGTHS})
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    tokens = pa.table({"input_ids": [[1] * n for n in LENGTHS], "length": [1] * len(LENGTHS)})
    pq.write_table(tokens, tmp_path / "tokens.parquet")
    for name in ("a.npy", "a.txt", "a.csv", "a.parquet", "a.arrow", "tokens.parquet"):
        assert read_lengths([str(tmp_path / name)]).tokens.tolist() == LENGTHS, name
    both = read_lengths([str(tmp_path / "a.npy"), str(tmp_path / "tokens.parquet")])
    assert both.tokens.tolist() == LENGTHS * 2
    assert both.kind == "numbers, tokens of 'input_ids'"
    assert both.name(3) == f"{tmp_path / 'a.npy'}, row 3"
    assert "tokens.parquet" in both.name(len(LENGTHS) + 3)
    assert "row 3" in both.name(len(LENGTHS) + 3)
    named = read_lengths([str(tmp_path / "tokens.parquet")], length="length")
    assert named.tokens.tolist() == [1] * len(LENGTHS)


def test_files_without_lengths_say_what_they_hold(tmp_path):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "text.parquet")
    with pytest.raises(ValueError, match=r"text\.parquet has neither .* it has text\. Name one"):
        read_lengths([str(tmp_path / "text.parquet")])
    np.save(tmp_path / "bad.npy", np.array([1.0, np.nan]))
    with pytest.raises(ValueError, match=r"bad\.npy: lengths must be whole numbers"):
        read_lengths([str(tmp_path / "bad.npy")])
    (tmp_path / "bad.txt").write_text("5\nfive\n")
    with pytest.raises(ValueError, match=r"bad\.txt must hold one number"):
        read_lengths([str(tmp_path / "bad.txt")])


def test_a_policy_that_cannot_plan_carries_the_reason():
    steps = [np.arange(2)]
    options = {"topology": Topology(ranks=1), "max_tokens": 10, "cost": CostModel(1.0)}
    outcome = compare_policies(np.array([5, 20]), steps, ["balanced"], **options)[0]
    assert "row 1 has 20" in outcome.error
    assert outcome.steps == 0


def test_what_cannot_fit_counts_alignment_padding_and_keeps_the_files_row_numbers():
    lengths, topology = np.array([0, 10, 11, 20, 0, 21, 24]), Topology(ranks=2)
    files = FileLengths(tokens=lengths, kind="", starts=[0, 4], namers=["a{}".format, "b{}".format])
    narrow = admit(files, topology=topology, max_tokens=10, cp_degrees=(1,))
    assert narrow.too_long == [("a2", 2, 11), ("a3", 3, 20), ("b1", 5, 21), ("b2", 6, 24)]
    # two ranks hold 20 tokens in pieces of a multiple of 4
    wide = admit(files, topology=topology, max_tokens=10, cp_degrees=(1, 2))
    assert wide.too_long == [("b1", 5, 21), ("b2", 6, 24)]
    assert (wide.lengths.tolist(), wide.num_empty) == ([10, 11, 20], 2)


def test_the_degrees_of_the_balanced_plan_are_told(lengths_file):
    assert "balanced: samples by CP degree" in run(lengths_file, "--cp-degrees", "1,2").stdout


def test_amounts_may_be_written_short(lengths_file):
    short, long = (
        RUN.invoke(APP, [str(lengths_file), "--ranks", "2", "--json", "--max-tokens", amount]).stdout
        for amount in ("1Ki", "1024")
    )
    assert short == long


def test_costs_and_degrees_are_parsed():
    assert parse_cost("2e-4,1e-8,0.05") == CostModel(2e-4, 1e-8, 0.05)
    assert parse_cost("2e-4") == CostModel(2e-4)
    assert parse_cost("generic") == CostModel.generic()
    assert parse_degrees("4, 1,2") == (1, 2, 4)


def test_files_without_a_token_and_torn_ones_are_named(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    told = {"empty.txt": "(0 rows). Check the path", "torn.parquet": "not a whole parquet file"}
    for name, what in told.items():
        result = run(tmp_path / name)
        assert result.exit_code == 1
        assert name in result.stderr
        assert what in result.stderr


def test_a_misspelt_sync_is_told_once(lengths_file):
    result = run(lengths_file, "--sync", "steps")
    assert result.exit_code == 1
    assert (
        result.stderr
        == "evenload: --sync must be one of step, micro_batch, got 'steps'. Did you mean 'step'?\n"
    )


def test_a_step_larger_than_the_file_is_shown_as_it_is(lengths_file):
    assert "of 8 samples" in run(lengths_file, "--global-batch-size", "5000").stdout


def test_pictures_go_into_folders_that_are_made(lengths_file, tmp_path):
    assert run(lengths_file, "--trace", str(tmp_path / "new" / "step.json")).exit_code == 0
    assert (tmp_path / "new" / "step.json").is_file()


CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 4096,
    "vocab_size": 32000,
}


@pytest.fixture
def alone(tmp_path):
    """A cost as `evenload calibrate` writes it: measured on one rank."""
    rows = [(lengths, 1, 0.002 + CostModel(2e-5, 3e-8)(lengths).sum()) for lengths in ([64], [512], [64] * 8)]
    path = tmp_path / "cost.json"
    CostModel.fit([*rows, ([1024], 1, 0.002 + CostModel(2e-5, 3e-8)([1024]).sum())]).save(path)
    return path


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_a_cost_measured_on_one_rank_takes_its_communication_from_the_model(alone, config_file):
    topology = Topology(ranks=8, ranks_per_node=4)
    cost = cost_model(str(alone), config_file, "a100", cp_degrees=(1, 2, 8), topology=topology)
    measured = CostModel.load(alone)
    derived = CostModel.from_config(CONFIG, gpu="a100", ranks_per_node=4)
    assert cost.communication == derived.communication
    assert (cost.linear, cost.quadratic) == (measured.linear, measured.quadratic)
    assert cost([500], 8)[0] > measured([500])[0] / 8
    assert cost.source == f"{measured.source}; communication derived for a100"


def test_without_a_model_it_says_once_that_sharing_is_free(lengths_file, alone, recwarn):
    result = run(lengths_file, "--cost", str(alone), "--cp-degrees", "1,2")
    assert result.exit_code == 0
    assert result.stderr == f"evenload: {FREE}.\n"
    assert not [one for one in recwarn if "cp_degree" in str(one.message)]


@pytest.mark.parametrize("command", ["plan", "simulate", "inspect", "report"])
def test_every_command_that_plans_shares_at_a_price_or_says_that_it_is_free(
    command, alone, config_file, tmp_path
):
    data = tmp_path / "tokens.parquet"
    pq.write_table(pa.table({"input_ids": [[1] * n for n in (30, 300, 500, 900) * 4]}), data)
    options = ("--ranks", "2", "--max-tokens", "1024", "--cp-degrees", "1,2", "--cost", str(alone), "--json")
    called = CliRunner().invoke(app, [command, str(data), *options])
    assert called.exit_code == 0, called.output
    assert f"evenload: {FREE}.\n" in called.stderr
    called = CliRunner().invoke(app, [command, str(data), *options, "--model", str(config_file)])
    assert called.exit_code == 0, called.output
    assert FREE not in called.stderr


@pytest.mark.parametrize("options", [("--cp-degrees", "1"), ("--cp-degrees", "1,2", "--model")])
def test_where_it_does_not_matter_or_a_model_is_given_nothing_is_said(
    lengths_file, alone, config_file, options
):
    given = (*options, str(config_file)) if options[-1] == "--model" else options
    result = run(lengths_file, "--cost", str(alone), *given)
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_warning_of_the_project_is_a_sentence_and_others_stay_as_they_are(
    lengths_file, alone, capsys, monkeypatch, recwarn
):
    options = ["--ranks", "2", "--max-tokens", "2048", "--cost", str(alone), "--json"]
    monkeypatch.setattr(sys, "argv", ["evenload", "plan", str(lengths_file), *options])
    with pytest.raises(SystemExit) as ended:
        cli_app.main()
    told = capsys.readouterr().err
    assert ended.value.code == 0
    assert told.startswith("evenload: CostModel (fit): costs were measured up to 1024 tokens")
    assert ".py:" not in told
    with told_warnings():
        warnings.warn("of another", stacklevel=1)
    assert [str(one.message) for one in recwarn] == ["of another"]
    assert capsys.readouterr().err == ""


def test_degrees_that_were_measured_to_be_free_and_numbers_are_kept(config_file):
    for text in ("1e-4,1e-8,0", "flexsp-a100-7b"):
        cost = cost_model(text, config_file, "h100", cp_degrees=(1, 2), topology=Topology(ranks=2))
        assert cost == parse_cost(text)


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (None, False),
        ("generic", False),
        ("1e-4,1e-8", True),
        ("hydraulis-7b-tp2", True),
        ("flexsp-a100-7b", False),
    ],
)
def test_given_costs_without_communication_say_so_where_samples_may_be_shared(lengths_file, cost, said):
    given = () if cost is None else ("--cost", cost)
    assert run(lengths_file, *given, "--cp-degrees", "1").stderr == ""
    assert run(lengths_file, *given, "--cp-degrees", "1,2").stderr == (
        f"evenload: {UNPRICED}.\n" if said else ""
    )


def test_a_model_alone_gives_the_cost(config_file):
    cost = cost_model(None, config_file, "h200", cp_degrees=(1, 2), topology=Topology(ranks=2))
    assert cost.linear == CostModel.from_config(CONFIG, gpu="h200").linear


def test_a_gpu_is_a_name_or_numbers(lengths_file):
    assert parse_gpu("H100") == GPUS["h100"]
    assert parse_gpu("165e12").flops == 165e12
    given = parse_gpu("165e12,25e9,12.5e9")
    assert (given.flops, given.intra_node, given.inter_node) == (165e12, 25e9, 12.5e9)
    for text in ("rtx4090", "1e12,2e9", ""):
        result = run(lengths_file, "--gpu", text)
        assert result.exit_code == 1
        assert "--gpu must be one of a100, h100, h200, b200, mi300x, or numbers" in result.stderr
        assert "such as 165e12,25e9,12.5e9" in result.stderr
