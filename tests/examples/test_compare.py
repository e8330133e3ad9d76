"""Numbers and pictures of a run, from records made by hand."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from clock import StepClock, StepRecord
from compare import by_policy, imbalance, paired_ratio, results
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from table import markdown, policy_rows, print_results, replace_between
from timeline import draw, shares_of, typical_steps
from torch.optim import SGD

EPOCH = {"steps": 10, "plan_s": 0.001, "seconds": {"padded": 40.0, "packed": 20.0, "balanced": 16.0}}
SECONDS = st.floats(0.1, 10.0)


def record(policy, step, rank, busy_s, step_s, start=0.0, real=10, computed=10):
    """A step that computes for ``busy_s``, then waits; 0.1 s of loading before and of updating after."""
    at = np.cumsum([start, 0.1, busy_s, step_s - busy_s, 0.1]).tolist()
    kinds = ("load", "compute", "wait", "update")
    return StepRecord(
        policy=policy,
        step=step,
        rank=rank,
        segments=[(kind, at[i], at[i + 1]) for i, kind in enumerate(kinds)],
        cpu_s=busy_s,
        real_tokens=real,
        computed_tokens=computed,
        capacity_tokens=2 * computed,
        predicted_s=busy_s,
        loss_sum=20.0,
        loss_tokens=5,
    )


def run_of(num_steps=6):
    """Padded steps take 4 s, packed ones 2 s on one rank of two, balanced ones 1.5 s on both."""
    ways = {"padded": ((4.0, 3.0), 40), "packed": ((1.0, 2.0), 10), "balanced": ((1.5, 1.5), 10)}
    records, now = [], 0.0
    for step in range(num_steps):
        for policy, (busy, computed) in ways.items():
            for rank, busy_s in enumerate(busy):
                records.append(record(policy, step, rank, busy_s, max(busy), start=now, computed=computed))
            now += max(busy) + 0.5
    return records


def test_columns_are_steps_by_ranks_without_the_warm_up():
    policies = by_policy(run_of(), first_step=2)
    assert list(policies) == ["padded", "packed", "balanced"]
    packed = policies["packed"]
    np.testing.assert_allclose(packed.wall_s, [2.2] * 4)
    np.testing.assert_allclose(packed.cpu_s, [[1.0, 2.0]] * 4)
    np.testing.assert_allclose(packed.wait_s, [[1.0, 0.0]] * 4, atol=1e-9)
    np.testing.assert_allclose(packed.critical_s, [2.0] * 4)
    np.testing.assert_allclose(packed.loss, [4.0] * 4)


def test_the_table_has_what_was_put_in():
    found = results(run_of(), first_step=0, ranks=2, epoch=EPOCH)
    padded, packed, balanced = found["policies"]
    assert padded["padding"] == pytest.approx(0.75)
    assert packed["padding"] == 0.0
    assert packed["fill"] == 0.5
    assert packed["wait_share"] == pytest.approx(1.0 / 2.2)
    assert packed["imbalance_measured"] == pytest.approx(2.0 / 1.5)
    assert balanced["efficiency"] == pytest.approx(1.0)
    assert balanced["tokens_per_s"] == pytest.approx(20 / 1.7)
    ratios = {(ratio["faster"], ratio["slower"], ratio["clock"]): ratio for ratio in found["ratios"]}
    assert ratios["balanced", "packed", "critical_s"]["ratio"] == pytest.approx(2.0 / 1.5)
    assert ratios["balanced", "padded", "wall_s"]["ratio"] == pytest.approx(4.2 / 1.7)
    assert [row[0] for row in policy_rows(found)] == ["padded", "packed", "evenload"]
    assert "| evenload | 12 |" in markdown(found)
    assert "evenload over padded 2.50, over packed 1.25 times as fast" in markdown(found)
    assert "| evenload over packed | 1.29 [1.29, 1.29] | 1.33 [1.33, 1.33] |" in markdown(found)


def test_the_table_replaces_only_what_lies_between_the_markers():
    once = replace_between("a\n<!-- demo table -->\nold\n<!-- end of demo table -->\nb\n", "new")
    assert once == "a\n<!-- demo table -->\n\nnew\n\n<!-- end of demo table -->\nb\n"
    assert replace_between(once, "new") == once
    with pytest.raises(ValueError, match="demo table"):
        replace_between("no markers", "new")


def test_the_terminal_shows_every_number_in_80_columns():
    console = Console(width=80, record=True)
    print_results(results(run_of(), first_step=0, ranks=2, epoch=EPOCH), console)
    tables = console.export_text().split("padded: torch")[0]
    assert "…" not in tables
    assert "1.29 [1.29, 1.29]" in tables


@given(faster=st.lists(SECONDS, min_size=1, max_size=30), factor=st.floats(0.5, 4.0))
def test_a_constant_factor_has_no_uncertainty(faster, factor):
    ratio, low, high = paired_ratio(np.array(faster) * factor, np.array(faster), resamples=50)
    assert ratio == pytest.approx(factor)
    assert (low, high) == pytest.approx((factor, factor))


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(200):
        faster = rng.gamma(4.0, 1.0, 40)
        slower = faster * 1.2 * np.exp(rng.normal(0.0, 0.2, 40) - 0.02)  # mean factor 1.2
        _, low, high = paired_ratio(slower, faster, resamples=300, seed=seed)
        covered += low <= 1.2 <= high
    assert covered >= 0.88 * 200


@given(rank_s=st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=10))
def test_imbalance_lies_between_even_and_all_on_one_rank(rank_s):
    assert 1.0 <= imbalance(np.array(rank_s)) <= 2.0


def test_spans_of_the_picture_cover_the_step_and_show_the_share_of_padding():
    spans = shares_of(record("padded", 0, 0, 3.0, 4.0, real=10, computed=40).as_dict())
    assert [kind for kind, _, _ in spans] == ["real", "padding", "wait", "real"]
    assert [end for _, _, end in spans[:-1]] == [start for _, start, _ in spans[1:]]
    assert spans[1][2] - spans[1][1] == pytest.approx(0.75 * 3.0)


def test_pictures_are_drawn_from_the_file(tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results(run_of(), first_step=1, ranks=2, epoch=EPOCH)))
    assert typical_steps(json.loads(path.read_text())) == 1
    for picture in draw(path):
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_clock_cuts_steps_into_loading_computing_waiting_and_updating(monkeypatch):
    looks = itertools.count(1.0)
    now = lambda: next(looks)  # a machine's own clock may show the same twice
    monkeypatch.setattr("clock.time", SimpleNamespace(perf_counter=now, process_time=now))
    model = torch.nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    counted = []
    clock = StepClock(model, optimizer, count=lambda record, batch: counted.append((record.step, len(batch))))

    def loop():
        for number, batch in enumerate(clock.watch([torch.ones(3, 2)] * 4)):
            model(batch).sum().backward()
            if number % 2:  # two micro-batches a step
                optimizer.step()
                yield

    steps = loop()
    for step in range(2):
        found = StepRecord(policy="any", step=step, rank=0)
        clock.begin(found)
        next(steps)
        clock.end()
        kinds = [kind for kind, _, _ in found.segments]
        assert kinds == ["load", "compute", "load", "compute", "wait", "update"]
        times = [time for _, start, end in found.segments for time in (start, end)]
        assert times == sorted(times)
        assert found.cpu_s == found.end - found.start  # looked at right behind both
    assert counted == [(0, 3), (0, 3), (1, 3), (1, 3)]
