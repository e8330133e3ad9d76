"""What decides on readers: numbers in, numbers out, without Ray."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.mixture import Mixture
from loaders.opening import open_order
from loaders.order.schedule import Schedule
from loaders.order.steps import Steps
from loaders.ray_engine.accounts import WINDOW_S, Rate, Span
from loaders.ray_engine.demand import coming_tokens
from loaders.ray_engine.profile import LIGHT_S, Pace, Profile
from loaders.ray_engine.routing import FULL, allot, readers_wanted, relieved
from loaders.ray_engine.tracks import trace_events
from loaders.state import Cursor
from tests.loaders.arrays import ArraySource

loads = st.lists(st.floats(0, 100), min_size=1, max_size=30).map(np.array)


@given(load_s=loads, readers=st.integers(1, 12))
def test_every_source_has_readers_and_all_of_them_exist(load_s, readers):
    table = allot(load_s, readers)
    assert len(table) == load_s.size
    for row in table:
        assert row
        assert len(set(row)) == len(row)
        assert all(0 <= reader < readers for reader in row)


@given(load_s=loads, readers=st.integers(2, 12))
def test_a_source_with_several_readers_shares_them_with_no_other(load_s, readers):
    table = allot(load_s, readers)
    for at, row in enumerate(table):
        if len(row) > 1:
            assert all(not set(row) & set(other) for k, other in enumerate(table) if k != at)


@pytest.mark.parametrize("readers", [2, 3, 8])
def test_a_heavy_source_is_kept_apart_from_light_ones(readers):
    table = allot(np.array([1.0, 50.0, 2.0, 1.0]), readers)
    light = {reader for at in (0, 2, 3) for reader in table[at]}
    assert not light & set(table[1])
    assert len(table[1]) == readers - len(light)
    if readers == 8:  # 50 of 54 seconds
        assert len(table[1]) == 7


def test_equal_light_sources_are_spread_evenly():
    table = allot(np.ones(12), 4)
    assert np.bincount([row[0] for row in table]).tolist() == [3, 3, 3, 3]


@given(load_s=loads, compute_s=st.floats(0.01, 100), most=st.integers(1, 40))
def test_readers_keep_up_where_there_may_be_enough(load_s, compute_s, most):
    wanted = readers_wanted(load_s, compute_s=compute_s, most=most)
    assert 1 <= wanted <= most
    if wanted < most:
        assert load_s.sum() <= wanted * compute_s * FULL * (1 + 1e-9)
    if wanted > 1:
        assert load_s.sum() > (wanted - 1) * compute_s * FULL * (1 - 1e-9)


@given(before=st.tuples(loads, st.integers(1, 9)), readers=st.integers(1, 9))
def test_readers_are_relieved_of_what_they_held_and_read_no_longer(before, readers):
    load_s, former = before
    old, new = allot(load_s, former), allot(load_s[::-1].copy(), readers)
    for reader in range(readers):
        held, holds = ({at for at, some in enumerate(table) if reader in some} for table in (old, new))
        assert (reader in relieved(old, new)) == bool(held - holds)


def test_a_reader_that_gets_the_others_sources_keeps_its_own():
    load_s = np.ones(10)
    assert relieved(allot(load_s, 2), allot(load_s, 1)) == {1}  # which is ended
    assert relieved(allot(load_s, 1), allot(load_s, 2)) == {0}


def test_a_pause_for_files_does_not_look_like_training_that_takes_no_time():
    pace = Pace()
    for _ in range(10):
        pace.add(seconds=2.0, waited=0.1, steps=4)
    steady = pace.compute_s
    assert steady == pytest.approx(1.9 / 4)
    pace.add(seconds=2.3, waited=2.6, steps=1)
    assert pace.compute_s > steady / 2
    for _ in range(30):
        pace.add(seconds=2.0, waited=2.0, steps=40)
    assert pace.compute_s < 1e-3


def test_a_profile_forgets_what_it_assumed():
    profile = Profile(np.array([False, True]))
    before = profile.load_s(np.array([1e6, 1e6]))
    assert before[1] > before[0] == pytest.approx(1e6 * LIGHT_S)
    for _ in range(50):
        profile.add({0: 10_000}, {0: 0.5}, {0: 80_000})
    after = profile.load_s(np.array([1e4, 1e6]))
    assert after[0] == pytest.approx(0.5, rel=0.01)
    assert after[1] == before[1]
    assert profile.size_bytes(np.array([1000.0, 0.0])) == pytest.approx(8000, rel=0.01)


def steps_of(mixture, samples):
    opened = open_order(
        mixture, length=None, capacity=64, oversize="drop", shuffle=True, seed=1, samples_per_step=samples
    )
    return Steps(order=opened.order, catalogs=opened.catalogs, samples=samples, tokens=None, drop_last=False)


def test_a_source_whose_weight_rises_is_seen_coming():
    sources = {"first": ArraySource([10] * 4000), "later": ArraySource([10] * 4000, name="later")}
    ramp = Schedule({0: {"first": 1, "later": 0}, 20: {"first": 1, "later": 0}, 30: {"first": 0, "later": 1}})
    steps = steps_of(Mixture(sources, ramp, stop=4000), 16)
    now = coming_tokens(steps, Cursor())
    assert now.tolist() == [160.0, 160.0]  # the first at once, the other in 32 steps
    at_the_end = coming_tokens(steps, Cursor(position=16 * 245, step=245))
    assert at_the_end.tolist() == [0.0, 160.0]


def test_behind_the_last_step_nothing_comes():
    steps = steps_of(Mixture({"only": ArraySource([10] * 20)}), 16)
    assert coming_tokens(steps, Cursor(position=20, step=2)).tolist() == [0.0]


def test_rates_are_of_the_last_seconds():
    rate = Rate()
    for second in range(100):
        rate.add(5, float(second))
    assert rate.total == 500
    assert rate.per_second(99.0) == pytest.approx(5 * (WINDOW_S + 1) / WINDOW_S)
    assert rate.per_second(99.0 + WINDOW_S + 1) == 0.0


def test_overlapping_builds_lie_on_tracks_of_their_own():
    spans = {
        "job:builder:node:0": [
            Span("build", "ranks 0..0, slot 0", 10.0, 2.0, 3),
            Span("build", "ranks 1..1, slot 0", 11.0, 2.0, 3),
            Span("build", "ranks 0..0, slot 1", 12.5, 1.0, 4),
            Span("wait", "rank 0", 10.0, 2.5, 3),
        ],
        "job:reader:0": [Span("read", "web", 10.5, 0.5, 3)],
    }
    events = [event for event in trace_events(spans) if event["ph"] == "X"]
    assert [event["ts"] for event in events if event["cat"] == "wait"] == [0.0]
    by_track = {}
    for event in events:
        by_track.setdefault((event["pid"], event["tid"]), []).append(
            (event["ts"], event["ts"] + event["dur"])
        )
    for held in by_track.values():
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(held))
    assert len(by_track) == 4  # two lanes of builds, waits, reads


def test_what_readers_need_is_imported_without_torch():
    code = "import sys, loaders.batches.pieces, loaders.ray_engine.rows; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_loader_is_imported_without_ray():
    code = "import sys, loaders.loader; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
