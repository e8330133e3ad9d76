"""What a running loader tells: on rank 0, through writers of two kinds, and on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from balancer import Topology
from loaders import DataLoader, Mixture
from loaders.telling import line_of, watched
from tests.loaders.arrays import ArraySource


class Scalars:
    def __init__(self):
        self.got = {}

    def add_scalar(self, name, value, step):
        self.got.setdefault(step, {})[name] = value


class Run:
    def __init__(self):
        self.got = {}

    def log(self, numbers, step):
        self.got[step] = numbers


def make(rank=0):
    mixture = Mixture({"web": ArraySource([5] * 40), "code": ArraySource([3] * 40)}, {"web": 1, "code": 1})
    return DataLoader(mixture, batch_size=4, max_tokens=32, topology=Topology(ranks=2), rank=rank)


def screen(terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=200)


def test_both_kinds_of_writers_get_the_metrics_of_every_few_steps():
    scalars, run, loader = Scalars(), Run(), make()
    console = screen(terminal=False)
    batches = [batch.step for batch in watched(loader, writers=[scalars, run], every=3, console=console)]
    assert batches == [batch.step for batch in make()]
    assert scalars.got == run.got
    assert list(run.got) == list(range(2, batches[-1] + 1, 3))
    assert run.got[8]["loader/steps"] == 9
    web = run.got[8]["loader/samples_by_source/web"]
    assert run.got[8]["loader/tokens_by_source/web"] == 5 * web
    assert 0 < web < 72
    assert all(isinstance(value, int | float) for value in run.got[8].values())
    assert console.file.getvalue() == ""


def test_other_ranks_are_silent():
    run, console = Run(), screen(terminal=True)
    assert len(list(watched(make(rank=1), writers=[run], every=1, console=console))) == len(
        list(make(rank=1))
    )
    assert run.got == {}
    assert console.file.getvalue() == ""


def test_a_terminal_has_a_line_that_ends_with_the_loop():
    console = screen(terminal=True)
    told = watched(make(), console=console)
    for _ in range(3):
        next(told)
    told.close()
    assert "step 0  " in console.file.getvalue()
    assert console.file.getvalue().endswith("\x1b[2K")  # the line is wiped, and the cursor shown again
    assert "\x1b[?25h" in console.file.getvalue()


def test_the_line_holds_rates_and_means():
    before = {"tokens": 1000, "wait_s": 1.0}
    report = {"tokens": 5000, "fill": 0.5, "imbalance": 1.25, "wait_s": 1.5, "skipped": 2}
    line = line_of(report, before, 2.0, 7)
    assert line == "step 7  2k tokens/s  fill 50.0%  imbalance 1.250  waiting 25.0%  skipped 2"


def test_a_writer_of_no_kind_is_refused():
    with pytest.raises(TypeError, match="object has neither"):
        watched(make(), writers=[object()])
    with pytest.raises(ValueError, match="every must be"):
        watched(make(), every=0)
