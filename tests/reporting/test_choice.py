"""Which setting is recommended, on grids made by hand, and that its reasons agree with them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.reporting.choice import CAP_TOLERANCE, SYNC_TOLERANCE, recommend
from loaders.reporting.question import Setting
from loaders.reporting.search import FITS, TOO_LARGE, UNKNOWN, Candidate, caps
from tests.reporting.cases import question

CAPS = (1024, 2048, 4096, 8192, 16_384)


def grid(times, *, sync="step", unfit=()):
    """(question, tried) from step times by (cap, sync), at one degree; whatever is not named takes 2 s.

    unfit: (cap, sync) that memory does not hold.
    """
    asked = question(given=Setting(4096, (1,), sync))
    tried = [
        Candidate(
            setting=Setting(cap, (1,), way),
            verdict=TOO_LARGE if (cap, way) in unfit else FITS,
            step_s=times.get((cap, way), 2.0),
            reason="estimated 90 GB, room for 72 GB" if (cap, way) in unfit else "",
        )
        for way in ("step", "micro_batch")
        for cap in CAPS
    ]
    return asked, tuple(tried)


def test_the_grid_is_that_of_the_question():
    assert caps(question(given=Setting(4096, (1,), "step"))) == list(CAPS)


@pytest.mark.parametrize("other", [2048, 8192])
def test_the_given_cap_is_kept_where_another_gains_no_more_than_1_percent(other):
    found = recommend(*grid({(4096, "step"): 1.009, (other, "step"): 1.0}))
    assert found.setting == Setting(4096, (1,), "step")
    why = found.reasons["max_tokens"]
    assert why.startswith("What you gave")
    assert f"{other:,} takes 0.9 % less time" in why


def test_another_cap_is_recommended_for_a_larger_gain_and_the_reason_says_how_large():
    found = recommend(*grid({(4096, "step"): 1.1, (8192, "step"): 1.0, (16_384, "step"): 0.995}))
    assert found.setting == Setting(8192, (1,), "step")
    why = found.reasons["max_tokens"]
    assert "the 4,096 that you gave takes 10.6 % more time than that fastest one" in why
    assert why.count("4,096") == 1
    assert "16,384 takes 0.5 % less time" in why


def test_the_given_sync_is_kept_where_the_other_gains_no_more_than_3_percent():
    unfit = [(cap, "step") for cap in CAPS if cap > 4096]
    times = {(4096, "step"): 1.02, (8192, "micro_batch"): 1.0}
    found = recommend(*grid(times, unfit=unfit))
    assert found.setting == Setting(4096, (1,), "step")
    why = found.reasons["sync"]
    assert "the fastest setting with micro_batch takes 2.0 % less time, too little to change for" in why
    assert "gathering of sharded weights in every micro-batch is not timed" in why


def test_another_sync_is_recommended_for_a_larger_gain():
    unfit = [(cap, "step") for cap in CAPS if cap > 4096]
    times = {(4096, "step"): 1.25, (8192, "micro_batch"): 1.0}
    found = recommend(*grid(times, unfit=unfit))
    assert found.setting == Setting(8192, (1,), "micro_batch")
    why = found.reasons["sync"]
    assert "takes 20.0 % less time than the fastest with step" in why
    assert "gathering of sharded weights, which is not timed" in why
    back = recommend(*grid({(4096, "step"): 1.0, (4096, "micro_batch"): 1.25}, sync="micro_batch"))
    assert back.setting == Setting(4096, (1,), "step")
    assert "takes 20.0 % less time than the fastest with micro_batch" in back.reasons["sync"]


def test_ranks_that_meet_once_a_step_are_not_asked_to_meet_more_often_for_the_same_cap():
    found = recommend(*grid({(4096, "step"): 1.1, (4096, "micro_batch"): 1.0}))
    assert found.setting == Setting(4096, (1,), "step")
    why = found.reasons["sync"]
    assert "micro_batch takes 9.1 % less time, but the same micro-batches take no longer" in why
    assert found.fastest_s == 1.0


def test_what_does_not_fit_is_named_with_its_reason():
    unfit = [(cap, "micro_batch") for cap in CAPS] + [(8192, "step"), (16_384, "step")]
    found = recommend(*grid({(4096, "step"): 1.0, (8192, "step"): 0.5}, unfit=unfit))
    assert found.setting == Setting(4096, (1,), "step")
    assert "8,192 takes 50.0 % less time, but estimated 90 GB" in found.reasons["max_tokens"]
    assert "micro_batch takes 100.0 % more time, but estimated 90 GB" in found.reasons["sync"]


def test_nothing_that_fits_is_said():
    asked, tried = grid({}, unfit=[(cap, way) for cap in CAPS for way in ("step", "micro_batch")])
    with pytest.raises(ValueError, match="no setting can run these samples"):
        recommend(asked, tried)


TIMES = st.lists(st.floats(0.9, 1.1), min_size=10, max_size=10)


@given(
    times=TIMES,
    fits=st.lists(st.booleans(), min_size=10, max_size=10),
    sync=st.sampled_from(["step", "micro_batch"]),
)
def test_what_was_given_is_kept_where_it_is_good_and_no_reason_contradicts_the_grid(times, fits, sync):
    cells = [(cap, way) for way in ("step", "micro_batch") for cap in CAPS]
    unfit = [cell for cell, held in zip(cells, fits, strict=True) if not held and cell != (4096, sync)]
    asked, tried = grid(dict(zip(cells, times, strict=True)), sync=sync, unfit=unfit)
    found = recommend(asked, tried)
    fitting = {one.setting: one.step_s for one in tried if one.verdict == FITS}
    fastest = {
        way: min((t for s, t in fitting.items() if s.sync == way), default=None)
        for way in ("step", "micro_batch")
    }
    best, own_s = found.setting, fastest[found.setting.sync]
    other = "step" if best.sync == "micro_batch" else "micro_batch"
    assert found.fastest_s == min(fitting.values())
    assert found.step_s == fitting[best] <= own_s * (1 + CAP_TOLERANCE)
    if fastest[sync] <= found.fastest_s * (1 + SYNC_TOLERANCE):
        assert best.sync == sync
    if best.sync != sync:
        assert fastest[sync] > own_s
    given_cap = Setting(4096, (1,), best.sync)
    assert (best.max_tokens == 4096) == (fitting.get(given_cap, 9.0) <= own_s * (1 + CAP_TOLERANCE))
    # every comparison of a cap in words is that of the grid
    for cap, part, way in re.findall(
        r"([\d,]+) takes ([\d.]+) % (more|less) time(?! than)", found.reasons["max_tokens"]
    ):
        step_s = next(
            one.step_s for one in tried if one.setting == Setting(int(cap.replace(",", "")), (1,), best.sync)
        )
        assert (step_s > found.step_s) == (way == "more")
        assert float(part) == pytest.approx(100 * abs(step_s / found.step_s - 1), abs=0.051)
    if best.sync == sync and fastest[other] is not None and "takes as long" not in found.reasons["sync"]:
        assert ("less time" in found.reasons["sync"]) == (fastest[other] < own_s)


def test_what_memory_is_not_known_for_is_not_recommended():
    asked, tried = grid({(4096, "step"): 1.0})
    unknown = tuple(
        Candidate(setting=one.setting, verdict=UNKNOWN, step_s=0.5, reason="give a model for an estimate")
        if one.setting.max_tokens > 4096
        else one
        for one in tried
    )
    found = recommend(asked, unknown)
    assert found.setting.max_tokens == 4096
    assert "8,192 takes 50.0 % less time, but give a model" in found.reasons["max_tokens"]
