"""Calibration against a model whose time is known: a clock that charges what a cost model says."""

import os
import sys

import numpy as np
import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

from balancer import CostModel, runtime
from balancer.cost import Communication
from loaders import Batch
from loaders.batches.collate import lay_out
from loaders.calibrate import UnfitModel, calibrate, flat_batch, forward_loss, micro_batches
from loaders.cli.calibrate import calibrate as command
from loaders.cli.calibrate import load_function, on_path

TRUE = CostModel(2e-5, 3e-8, 0.002)


class ChargedModel(nn.Module):
    """Charges a clock what ``TRUE`` says for each batch, plus noise that only ever adds."""

    def __init__(self, *, out_of_memory_above=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.now = 0.0
        self.runs = []
        self.rng = np.random.default_rng(0)
        self.limit = out_of_memory_above

    def clock(self):
        return self.now

    def forward(self, input_ids, cu_seq_lens_q, **_):
        lengths = np.diff(cu_seq_lens_q.numpy())
        if self.limit is not None and lengths.sum() > self.limit:
            raise torch.OutOfMemoryError("too many tokens")
        self.runs.append(tuple(lengths))
        seconds = TRUE.fixed_s() + TRUE(lengths).sum()
        self.now += seconds * (1 + 0.1 * self.rng.exponential())
        return self.weight * input_ids.float().mean()


def measured(model, **options):
    return calibrate(model, max_tokens=1024, clock=model.clock, **options)


def test_the_fit_finds_what_the_model_costs():
    model = ChargedModel()
    result = measured(model, repeats=8)
    lengths = [64, 300, 1000]
    np.testing.assert_allclose(result.cost(lengths), TRUE(lengths), rtol=0.1)
    assert "ChargedModel measured on cpu" in result.cost.source
    assert (result.cost.max_length, result.cost.degrees) == (1024, (1,))


def test_repeats_go_round_and_the_first_round_only_warms_up():
    model = ChargedModel()
    result = measured(model, repeats=2)
    shapes = micro_batches(1024, 1024)
    assert model.runs == shapes * 3
    assert [row[0] for row in result.measurements] == shapes * 2


def test_no_round_begins_after_the_budget_is_spent():
    model = ChargedModel()
    measured(model, repeats=50, budget_s=0.0)
    assert len(model.runs) == 2 * len(micro_batches(1024, 1024))  # the warm-up and one that counts


def test_what_does_not_fit_the_memory_is_left_out_and_named():
    result = measured(ChargedModel(out_of_memory_above=600))
    assert result.too_large
    assert all(sum(lengths) > 600 for lengths in result.too_large)
    assert result.cost.max_length == 512
    with pytest.raises(RuntimeError, match="Lower max_tokens"):
        measured(ChargedModel(out_of_memory_above=1))


def test_gradients_do_not_pile_up():
    model = ChargedModel()
    measured(model, repeats=1)
    assert model.weight.grad is None


def test_progress_counts_every_run():
    seen = []
    measured(ChargedModel(), repeats=1, progress=lambda done, total, what: seen.append((done, total)))
    total = 2 * len(micro_batches(1024, 1024))
    assert seen == [(i, total) for i in range(total)] + [(total, total)]


@pytest.mark.parametrize(("max_tokens", "max_length"), [(2, 2), (100, 30), (8192, 8192), (1000, 7)])
def test_micro_batches_respect_both_limits_and_differ(max_tokens, max_length):
    shapes = micro_batches(max_tokens, max_length)
    assert len(set(shapes)) == len(shapes) > 0
    assert all(sum(shape) <= max_tokens and max(shape) <= max_length and min(shape) > 0 for shape in shapes)


def test_a_flat_batch_restarts_positions_and_hides_borders():
    batch = flat_batch([3, 2], torch.device("cpu"))
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 5]
    ids = batch["input_ids"][0].tolist()
    assert batch["labels"].tolist() == [[-100, ids[1], ids[2], -100, ids[4]]]
    assert batch["shift_labels"].tolist() == [[ids[1], ids[2], -100, ids[4], -100]]


@pytest.mark.parametrize("kind", ["tensor", "loss", "logits", "tuple", "mapping"])
def test_losses_are_found_in_what_models_return(kind):
    class Output:
        def __init__(self, name, value):
            setattr(self, name, value)

    x = torch.tensor([1.0, 2.0])
    outputs = {
        "tensor": x,
        "loss": Output("loss", x.sum()),
        "logits": Output("logits", x),
        "tuple": (x, None),
        "mapping": {"loss": x},
    }
    assert forward_loss(lambda **_: outputs[kind], {"a": 1}).item() == 3.0
    with pytest.raises(TypeError, match="Give loss="):
        forward_loss(lambda *_: None, (1,))


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="repeats of at least 1"):
        measured(ChargedModel(), repeats=0)


def test_communication_can_be_added_to_a_measured_model():
    link = Communication(bytes_per_token=1e6, intra_node=1e11, inter_node=1e10)
    cost = measured(ChargedModel(), repeats=1).cost.with_communication(link)
    assert cost.degrees == ()
    assert cost([1000], 2)[0] == pytest.approx(cost([1000])[0] / 2 + 1e6 * 1000 / 2 / 1e11)


MODULE = """
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, 8)

    def forward(self, input_ids, **_):
        x = self.embedding(input_ids)[0]
        return torch.softmax(x @ x.T, -1) @ x

ready = Tiny()
number = 5

def make_list():
    return []
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "tiny_model_to_calibrate.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    app = typer.Typer()
    app.command()(command)
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, list(arguments))


@pytest.mark.parametrize("name", ["Tiny", "ready"])
def test_the_command_writes_a_cost_that_loads(folder, name):
    options = ["--max-tokens", "256", "--repeats", "2", "--device", "cpu", "--cpu-time"]
    result = run(f"tiny_model_to_calibrate:{name}", "-o", "cost.json", *options)
    assert result.exit_code == 0, result.output
    cost = CostModel.load(folder / "cost.json")
    assert "Tiny measured on cpu" in cost.source
    assert cost.report.longest == 256
    # of a model so small what grows with tokens may be lost in what does not
    assert cost.fixed + cost([256])[0] > 0
    assert "predicted" in result.stdout


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("tiny_model_to_calibrate", "module:function"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("tiny_model_to_calibrate:missing", "has no 'missing'"),
        ("tiny_model_to_calibrate:number", "cannot be called"),
        ("tiny_model_to_calibrate:make_list", "returned a list, not a torch.nn.Module"),
    ],
)
def test_a_bad_name_gets_a_sentence(folder, name, what):
    result = run(name)
    assert result.exit_code != 0
    assert what in " ".join(result.output.replace("│", "").split())


def test_functions_load_from_the_current_folder(folder):
    with on_path(os.getcwd()):
        assert load_function("tiny_model_to_calibrate:make_list")() == []


LATE = """
import sys
from torch import nn

class Late(nn.Module):
    def __init__(self):
        super().__init__()
        sys.path.insert(0, "of the user")
        import late_width
        self.embedding = nn.Embedding(256, late_width.WIDTH)

    def forward(self, input_ids, **_):
        import late_scale
        return late_scale.SCALE * self.embedding(input_ids)
"""


def test_modules_of_the_folder_may_be_imported_late_and_the_path_is_left_as_it_was(folder, monkeypatch):
    (folder / "late_model_to_calibrate.py").write_text(LATE)
    (folder / "late_width.py").write_text("WIDTH = 8")
    (folder / "late_scale.py").write_text("SCALE = 2.0")
    before = [entry for entry in sys.path if entry != str(folder)]
    monkeypatch.setattr(sys, "path", list(before))
    result = run("late_model_to_calibrate:Late", "--max-tokens", "256", "--repeats", "2", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert sys.path == ["of the user", *before]


def test_a_module_that_fails_on_import_is_told_in_a_sentence(folder):
    (folder / "torn_model_to_calibrate.py").write_text("1 +")
    result = run("torn_model_to_calibrate:Model")
    assert isinstance(result.exception, RuntimeError)
    assert "torn_model_to_calibrate failed when it was imported: SyntaxError" in str(result.exception)


class Attending(nn.Module):
    """Takes the loader's batch where `runtime.attention` needs it: by hand, or from what runs."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, 8)
        self.seen = []

    def forward(self, input_ids, batch=None, **_):
        batch = runtime.current_batch() if batch is None else batch
        self.seen.append(tuple(batch.seq_lengths))
        x = self.embedding(input_ids)[0][:, None]
        return runtime.attention(x, x, x, batch)


@pytest.mark.parametrize(
    "loss",
    [forward_loss, lambda model, batch: model(batch["input_ids"], batch).sum()],
    ids=["names", "batch"],
)
def test_a_model_with_the_runtimes_attention_is_measured(loss):
    model = Attending()
    result = calibrate(model, loss=loss, max_tokens=128, repeats=2)
    assert set(model.seen) == set(micro_batches(128, 128))
    assert result.cost([128])[0] > 0
    assert runtime.current_batch() is None


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_a_flat_batch_is_what_the_loader_would_hand_out(lengths):
    batch = flat_batch(lengths, torch.device("cpu"))
    tokens = batch["input_ids"][0].numpy()
    inputs, num_loss_tokens = lay_out(tokens, np.array(lengths, np.int32))
    assert isinstance(batch, Batch)
    assert set(batch) == set(inputs)
    for name, value in inputs.items():
        assert torch.equal(torch.as_tensor(batch[name]), torch.as_tensor(value)), name
        assert getattr(batch[name], "dtype", int) == getattr(value, "dtype", int)
    assert (batch.num_loss_tokens, batch.step_loss_tokens) == (num_loss_tokens, num_loss_tokens)
    assert batch.seq_lengths.tolist() == lengths
    assert (batch.cp_degree, batch.last_in_step, batch.place.is_dummy) == (1, True, False)


PLAIN = """
from torch import nn

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, 8)

    def forward(self, ids):
        return self.embedding(ids)

def call(model, batch):
    return model(batch["input_ids"]).sum()
"""


def test_a_model_that_does_not_take_the_names_gets_a_sentence_and_runs_with_a_call_of_its_own(folder):
    (folder / "plain_model_to_calibrate.py").write_text(PLAIN)
    name = "plain_model_to_calibrate:Plain"
    options = ["--max-tokens", "256", "--repeats", "2", "--device", "cpu"]
    result = run(name, *options)
    told = str(result.exception)
    assert isinstance(result.exception, RuntimeError)
    assert told.startswith(f"{name}: the model was called as model(input_ids=..., ")
    assert "forward(ids) does not take" in told
    assert "Pass --batch or --loss" in told
    assert run(name, "--loss", "plain_model_to_calibrate:call", *options).exit_code == 0


def test_in_python_it_is_a_type_error():
    class Plain(nn.Module):
        def forward(self, ids):
            return ids

    with pytest.raises(UnfitModel, match="make_batch= or loss="):
        calibrate(Plain(), max_tokens=64)
