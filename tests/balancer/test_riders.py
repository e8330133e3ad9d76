"""What is done around riding equals its slow twins."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from balancer._kernels import riders
from balancer.reference import riders as twin

UNIT = 1 << 16


def array(numbers):
    return np.array(numbers, np.int64)


@st.composite
def cuts(draw):
    """(tokens, order, offsets, degree level of each micro-batch): some samples stand in micro-batches."""
    tokens = draw(st.lists(st.integers(1, 300), max_size=20))
    order = draw(st.permutations(range(len(tokens))))[: draw(st.integers(0, len(tokens)))]
    bounds = sorted(draw(st.lists(st.integers(0, len(order)), max_size=4)))
    offsets = [0, *bounds, len(order)] if order or bounds else [0]
    level = draw(st.lists(st.integers(1, 2), min_size=len(offsets) - 1, max_size=len(offsets) - 1))
    return tokens, list(order), offsets, level


@given(cut=cuts(), fixed=st.lists(st.integers(0, 50), min_size=3, max_size=3), room=st.integers(0, 2000))
def test_costs_and_room_of_micro_batches_equal_their_twins(cut, fixed, room):
    tokens, order, offsets, level = cut
    time = [[3 * n for n in tokens], [2 * n + 5 for n in tokens]]
    cost = riders.costs(
        array(order), array(offsets), array(level), array(time).reshape(2, -1), array(fixed)
    )  # fmt: skip
    assert cost.tolist() == twin.costs(order, offsets, level, time, fixed)
    degree = [2**j for j in level]
    rooms = [room * d for d in degree]
    free = riders.room_left(array(order), array(offsets), array(degree), array(rooms), array(tokens))
    assert free.tolist() == twin.room_left(order, offsets, degree, rooms, tokens)


@given(
    tokens=st.lists(st.integers(1, 300), max_size=40),
    own_room=st.integers(1, 400),
    room=st.integers(1, 9000),
    most=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    skipped=st.integers(0, 5),
)
def test_candidates_equal_their_twin(tokens, own_room, room, most, skipped):
    tokens = sorted(tokens, reverse=True)
    able = list(range(skipped, len(tokens)))
    found = riders.candidates(array(able), array(tokens), own_room, room, most)
    assert found.tolist() == twin.candidates(able, tokens, own_room, room, most)


@given(cut=cuts(), data=st.data())
def test_joining_equals_its_twin(cut, data):
    tokens, order, offsets, level = cut
    others = sorted(set(range(len(tokens))) - set(order))
    batch_of = [data.draw(st.integers(-1, len(level) - 1)) for _ in others]
    found = riders.join(array(order), array(offsets), array(others), array(batch_of), len(tokens))
    assert tuple(x.tolist() for x in found) == twin.join(order, offsets, others, batch_of, len(tokens))


@given(
    ranks=st.lists(
        st.tuples(st.integers(0, 9000), st.sampled_from([UNIT, UNIT // 3, 2 * UNIT])), min_size=1, max_size=5
    ),
    tokens=st.lists(st.integers(1, 300), max_size=20),
    degree=st.sampled_from([1, 2]),
    per_token=st.sampled_from([0.0, 0.1, 7.5]),
    skipped=st.integers(0, 5),
)
def test_the_fair_end_equals_its_twin(ranks, tokens, degree, per_token, skipped):
    load, pace = map(list, zip(*ranks, strict=True))
    rest, base = list(range(skipped, len(tokens))), [n * n for n in tokens]
    found = riders.fair_end(
        array(load), array(pace), UNIT, array(rest), array(tokens), array(base), degree, per_token
    )
    assert found == twin.fair_end(load, pace, UNIT, rest, tokens, base, degree, per_token)
