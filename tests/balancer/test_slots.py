"""Slots are filled, and their time is counted, as by the slow twin."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from balancer._kernels import slots
from balancer._kernels.waves import shelve
from balancer.reference import slots as twin

UNIT = 1 << 16
RANKS = 4


def array(numbers):
    return np.array(numbers, np.int64)


@st.composite
def grounds(draw):
    """Groups of four ranks, which may be unlike, and samples with their times."""
    degrees = draw(st.sampled_from([(1, 2, 4), (1, 2), (1, 4), (2, 4), (1,)]))
    caps, slow = [100] * RANKS, [UNIT] * RANKS
    if draw(st.booleans()):
        caps = draw(st.lists(st.sampled_from([60, 100, 120]), min_size=RANKS, max_size=RANKS))
    if draw(st.booleans()):
        slow = draw(st.lists(st.sampled_from([UNIT, UNIT // 3, 2 * UNIT]), min_size=RANKS, max_size=RANKS))
    blocks = [(first, d) for d in degrees for first in range(0, RANKS, d)]
    length = st.one_of(st.integers(1, 110), st.sampled_from([8, 32, 48]), st.integers(1, 30))
    size = draw(st.integers(0, 16))
    tokens = sorted(draw(st.lists(length, min_size=size, max_size=size)), reverse=True)
    scale = draw(st.sampled_from([1, 997]))
    return {
        "tokens": tokens,
        "time": [[scale * (9 * n + n * n // 5) // d + 4 * j for n in tokens] for j, d in enumerate(degrees)],
        "fixed": [draw(st.sampled_from([0, 30, 5000]))] * len(degrees),
        "degrees": list(degrees),
        "starts": [first for first, _ in blocks],
        "bounds": [sum(d <= degree for _, d in blocks) for degree in (0, *degrees)],
        "room": [d * min(caps[first : first + d]) for first, d in blocks],
        "pace": [max(slow[first : first + d]) for first, d in blocks],
        "unit": UNIT,
    }, slow


def shelved(ground, lo, height, num_slots):
    """The wide micro-batches of a ground, as `fill_slots` takes them."""
    heights = np.full(num_slots, height)
    taken = np.zeros((num_slots, RANKS), np.bool_)
    columns = [
        array(ground[name]) for name in ("tokens", "time", "fixed", "degrees", "starts", "bounds", "room")
    ]
    columns[1] = columns[1].reshape(len(ground["degrees"]), -1)
    wide = shelve(array(lo), *columns, heights, taken, 512)
    assume(wide[0].size == lo[0])
    names = ("wide_of", "wide_slot", "wide_block", "wide_free", "wide_cost")
    return {
        **{name: column.tolist() for name, column in zip(names, wide, strict=True)},
        "wide_height": heights.tolist(),
        "taken": taken.tolist(),
    }


def as_arrays(given):
    """The same arguments for the kernel."""
    arrays = {name: array(x) if isinstance(x, list) else x for name, x in given.items()}
    if "taken" in given:
        arrays["taken"] = np.array(given["taken"], np.bool_)
    levels = len(given["fixed"])
    arrays["time"] = arrays["time"].reshape(levels, -1)
    return arrays


@given(data=st.data(), ground=grounds(), num_slots=st.integers(1, 5), meet=st.booleans())
@settings(max_examples=150)
def test_slots_are_filled_and_timed_as_by_their_slow_twins(data, ground, num_slots, meet):
    step, slow = ground
    samples, levels = len(step["tokens"]), len(step["degrees"])
    cuts = st.integers(0, samples)
    wide = st.one_of(st.integers(0, (samples + 1) // 2), cuts)
    lo = sorted(data.draw(st.lists(wide, min_size=levels - 1, max_size=levels - 1)), reverse=True) + [0]
    height = data.draw(st.sampled_from([900, 0, 10**4, 10**7]))
    given = {
        **step,
        **shelved(step, lo, height, num_slots),
        "short": [samples, *(data.draw(st.one_of(st.just(samples), cuts)) for _ in range(levels - 1))],
        "riders": data.draw(st.sampled_from([True, True, False])),
        "tight": data.draw(st.booleans()),
        "dense": data.draw(st.sampled_from([0.0, 0.8, 1.0])),
    }
    found = tuple(x.tolist() for x in slots.fill_slots(*as_arrays(given).values()))
    assert found == twin.fill_slots(**given)
    batch_of, slot, block = found
    degree = [step["degrees"][j] for j in range(levels) for _ in range(RANKS // step["degrees"][j])]
    timed = {
        "batch_of": batch_of,
        "slot": slot,
        "block": block,
        "starts": step["starts"],
        "degree": degree,
        "level": [step["degrees"].index(d) for d in degree],
        "time": step["time"],
        "fixed": step["fixed"],
        "slowness": slow,
        "unit": UNIT,
        "meet": meet,
        "num_slots": max(slot, default=-1) + 1 + data.draw(st.integers(0, 1)),
        "idle": data.draw(st.sampled_from([0, 30, 5000])),
        "later": data.draw(st.sampled_from([0, 3])),
    }
    assert slots.step_time(*as_arrays(timed).values()) == twin.step_time(**timed)


@given(
    wanted=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 9)), max_size=12),
    slow=st.lists(st.sampled_from([UNIT, UNIT, UNIT // 3, 2 * UNIT]), min_size=RANKS, max_size=RANKS),
    idle=st.integers(0, 9),
    later=st.sampled_from([0, 3]),
    meet=st.booleans(),
    more=st.integers(0, 1),
)
def test_the_time_of_any_layout_equals_that_of_the_slow_twin(wanted, slow, idle, later, meet, more):
    starts, degree, level = [0, 1, 2, 3, 0, 2, 0], [1, 1, 1, 1, 2, 2, 4], [0, 0, 0, 0, 1, 1, 2]
    taken, layout = set(), []
    for slot, block, work in wanted:
        members = {(slot, rank) for rank in range(starts[block], starts[block] + degree[block])}
        if not members & taken:
            taken |= members
            layout.append((slot, block, work))
    slot, block, work = map(list, zip(*layout, strict=True)) if layout else ([], [], [])
    timed = {
        "batch_of": list(range(len(work))),
        "slot": slot,
        "block": block,
        "starts": starts,
        "degree": degree,
        "level": level,
        "time": [work, [n + 1 for n in work], [2 * n for n in work]],
        "fixed": [3, 4, 5],
        "slowness": slow,
        "unit": UNIT,
        "meet": meet,
        "num_slots": max(slot, default=-1) + 1 + more,
        "idle": idle,
        "later": later,
    }
    assert slots.step_time(*as_arrays(timed).values()) == twin.step_time(**timed)
