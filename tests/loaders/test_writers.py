"""TensorBoard and Weights & Biases themselves take what `watched` writes, where they are installed."""

from __future__ import annotations

import pytest

from loaders.telling import numbers_of, watched
from tests.loaders.test_telling import Run, make, screen


def test_tensorboard_reads_back_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    loader = make()
    with SummaryWriter(tmp_path) as writer:
        list(watched(loader, writers=[writer], every=2, console=screen(terminal=False)))
    events = EventAccumulator(str(tmp_path)).Reload()
    written = {name: events.Scalars(name)[-1].value for name in events.Tags()["scalars"]}
    expected = numbers_of(loader.metrics())
    assert written.keys() <= expected.keys()
    assert written["loader/steps"] == expected["loader/steps"]
    for name in ("loader/fill", "loader/tokens", "loader/samples_by_source/web", "loader/most_tokens"):
        assert written[name] == pytest.approx(expected[name])
    steps = [event.step for event in events.Scalars("loader/fill")]
    assert steps == list(range(1, loader.metrics()["steps"], 2))


def test_weights_and_biases_keeps_what_was_written(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    loader = make()
    seen = Run()
    run = wandb.init(mode="offline", dir=str(tmp_path), project="evenload")
    list(watched(loader, writers=[run, seen], every=3, console=screen(terminal=False)))
    summary = {name: value for name, value in dict(run.summary).items() if name.startswith("loader/")}
    run.finish()
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert file.stat().st_size > 0
    assert summary["loader/steps"] >= 9  # the last message is kept when the run ends
    assert summary == seen.got[summary["loader/steps"] - 1]
