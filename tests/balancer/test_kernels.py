"""Fast kernels equal their slow, obvious twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import partition, reference
from balancer._kernels import order, place, waves
from balancer._kernels.differencing import largest_differencing

works = st.lists(st.integers(0, 10**9), min_size=1, max_size=60).map(
    lambda x: np.array(sorted(x)[::-1], np.int64)
)


@given(lengths=st.lists(st.integers(0, 2**31 - 1), max_size=80))
def test_longest_first_is_a_stable_falling_sort(lengths):
    x = np.array(lengths, np.int64)
    bits = max(int(x.max(initial=0)).bit_length(), 1)
    assert order.longest_first(x, bits).tolist() == np.argsort(-x, kind="stable").tolist()


@given(work=works, ranks=st.integers(1, 9), data=st.data())
def test_least_loaded_equals_its_twin(work, ranks, data):
    load = np.array(data.draw(st.lists(st.integers(0, 10**9), min_size=ranks, max_size=ranks)), np.int64)
    expected, loads = reference.least_loaded(work.tolist(), load.tolist())
    assert place.least_loaded(work, load, 4).tolist() == expected
    assert load.tolist() == loads


@given(lists=st.lists(st.lists(st.integers(1, 50), max_size=30), max_size=5), capacity=st.integers(50, 120))
def test_first_fit_equals_its_twin(lists, capacity):
    tokens = np.array([n for part in lists for n in part], np.int64)
    offsets = np.cumsum([0, *map(len, lists)])
    room = np.full(len(lists), capacity)
    grouped, bounds, list_of = place.first_fit(tokens, np.arange(tokens.size), offsets, room)
    got = [(int(list_of[b]), grouped[bounds[b] : bounds[b + 1]].tolist()) for b in range(list_of.size)]
    expected = []
    for g, part in enumerate(lists):
        bins = reference.first_fit(part, capacity)
        expected += [
            (g, [int(offsets[g]) + i for i in range(len(part)) if bins[i] == b])
            for b in range(max(bins, default=-1) + 1)
        ]
    assert got == expected


@given(work=works, parts=st.integers(1, 7))
def test_largest_differencing_equals_its_twin(work, parts):
    part_of = largest_differencing(work, parts, 6)
    sums = np.bincount(part_of, weights=work, minlength=parts)
    assert sorted(sums.tolist()) == reference.largest_differencing(work.tolist(), parts)


@given(
    costs=st.lists(st.floats(0, 1e6), max_size=60),
    parts=st.integers(1, 8),
    equal_size=st.booleans(),
)
def test_partition_holds_every_item_once_and_is_near_the_mean(costs, parts, equal_size):
    found = partition(costs, parts, equal_size=equal_size)
    assert len(found) == parts
    assert sorted(i for part in found for i in part.tolist()) == list(range(len(costs)))
    sizes = [len(part) for part in found]
    if equal_size:
        assert max(sizes) - min(sizes) <= 1
    else:
        # Graham 1969: at most 4/3 - 1/(3m) times the optimum, which is at least this.
        falling = sorted(costs, reverse=True)
        least = max(sum(costs) / parts, falling[0] if falling else 0.0)
        if len(falling) > parts:
            least = max(least, falling[parts - 1] + falling[parts])
        worst = max((sum(costs[i] for i in part.tolist()) for part in found), default=0.0)
        assert worst <= least * (4 / 3) + 1e-3


def test_trainable_tokens_can_be_dealt_evenly_at_equal_pack_counts():
    trainable = [200, 200, 7900, 7900, 4000, 4000, 1000, 7000]
    parts = partition(trainable, 4, equal_size=True)
    sums = [sum(trainable[i] for i in part) for part in parts]
    assert max(sums) / (sum(sums) / 4) < 1.01


def test_partition_pairs_the_giant_with_the_smallest():
    parts = partition([100, 1, 2, 3, 50, 52], 2, equal_size=True)
    assert sorted(sorted(part.tolist()) for part in parts) == [[0, 1, 3], [2, 4, 5]]
    with pytest.raises(ValueError, match="at least 0"):
        partition([1, -2], 2)
    with pytest.raises(ValueError, match="parts"):
        partition([1, 2], 0)


@given(data=st.data(), ranks=st.integers(1, 6))
def test_finish_times_equal_a_run_of_the_queues(data, ranks):
    batches = data.draw(
        st.lists(
            st.integers(1, ranks).flatmap(
                lambda d: st.tuples(st.integers(0, ranks - d), st.just(d), st.integers(1, 9))
            ),
            max_size=12,
        )
    )
    free = [0] * ranks
    for first, degree, cost in batches:
        begin = max(free[first : first + degree])
        free[first : first + degree] = [begin + cost] * degree
    columns = np.array(batches, np.int64).reshape(-1, 3).T
    pace = np.full(ranks, 1 << 16)
    ends = waves.finish_times(
        columns[0].copy(), columns[1].copy(), np.arange(len(batches)), columns[2].copy(), pace, 1 << 16
    )
    assert ends.tolist() == free
