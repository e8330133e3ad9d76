"""WLB-LLM's packings, as the benchmark remakes them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import CostModel
from benchmarks import _wlb_llm as wlb

COST = CostModel(1e-4, 2e-4 / 36_000)


@pytest.fixture(scope="module")
def iterations() -> list[wlb.Iteration]:
    return wlb.as_loaded(4_000, 3)


def lengths_of(iterations: list[wlb.Iteration]) -> np.ndarray:
    return np.concatenate([pack for packs in iterations for pack in packs])


def test_windows_as_loaded_are_full(iterations: list[wlb.Iteration]) -> None:
    assert len(iterations) > 10
    for packs in iterations:
        assert [int(pack.sum()) for pack in packs] == [wlb.WINDOW] * wlb.MICRO_BATCHES
    assert lengths_of(iterations).min() > 0


def test_shorter_windows_are_full_too() -> None:
    iterations = wlb.as_loaded(1_000, 0, 65_536)
    assert {int(pack.sum()) for packs in iterations for pack in packs} == {65_536}
    assert wlb.window_of(iterations) == 65_536


@pytest.mark.parametrize("together", [1, 2, 4])
def test_greedy_windows_are_full_and_hold_the_same_pieces(
    iterations: list[wlb.Iteration], together: int
) -> None:
    whole = iterations[: len(iterations) // together * together]
    made = wlb.fixed_greedy(whole, together)
    assert len(made) == len(whole)
    assert all(int(pack.sum()) == wlb.WINDOW for packs in made for pack in packs)
    # Only short pieces are cut to fill what is left.
    before, after = lengths_of(whole), lengths_of(made)
    assert np.array_equal(np.sort(before[before > 16_384]), np.sort(after[after > 16_384]))
    assert wlb.imbalance(made, wlb.by_document(COST)) <= wlb.imbalance(whole, wlb.by_document(COST))


@pytest.mark.parametrize("bounds", [(65_536,), (32_768, 65_536)])
def test_the_variable_packing_runs_documents_once_and_may_keep_the_last_ones(
    iterations: list[wlb.Iteration], bounds: tuple[int, ...]
) -> None:
    made, delay = wlb.delayed(iterations, bounds, COST)
    left = np.sort(lengths_of(iterations)).tolist()
    for length in lengths_of(made).tolist():
        left.remove(length)  # raises where a document ran twice or was made up
    assert all(length >= bounds[0] for length in left)
    assert len(left) < wlb.MICRO_BATCHES * len(bounds)
    assert all(int(pack.sum()) < wlb.WINDOW * 3 // 2 for packs in made for pack in packs)
    assert 0 < delay < len(iterations)


def test_every_micro_batch_gets_one_of_the_delayed(iterations: list[wlb.Iteration]) -> None:
    made, _ = wlb.delayed(iterations, (65_536,), COST)
    for packs in made:
        assert {int((pack >= 65_536).sum()) for pack in packs} in ({0}, {1})


def test_the_planner_runs_the_same_documents(iterations: list[wlb.Iteration]) -> None:
    made = wlb.planned(iterations[:4], 2, COST)
    assert np.array_equal(np.sort(lengths_of(made)), np.sort(lengths_of(iterations[:4])))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_pairs_of_the_fullest_rank_are_counted_token_by_token(lengths: list[int]) -> None:
    pack = np.array(lengths)
    attended = np.concatenate([np.arange(1, length + 1) for length in lengths])
    bounds = [i * attended.size // (2 * wlb.CP) for i in range(2 * wlb.CP + 1)]
    chunks = [attended[a:b].sum() for a, b in pairwise(bounds)]
    ranks = [chunks[i] + chunks[2 * wlb.CP - 1 - i] for i in range(wlb.CP)]
    assert wlb.most_pairs(pack) == max(ranks)


def test_one_document_is_split_evenly_either_way() -> None:
    pack = np.array([wlb.WINDOW])
    assert wlb.by_sequence(COST)(pack) == pytest.approx(wlb.by_document(COST)(pack), rel=1e-4)


def test_equal_micro_batches_take_slots_and_stages() -> None:
    even = [[np.array([wlb.WINDOW])] * wlb.MICRO_BATCHES]
    second = wlb.by_document(COST)
    step_s = (wlb.MICRO_BATCHES + wlb.STAGES - 1) * second(even[0][0])
    assert wlb.token_seconds(even, second) * wlb.MICRO_BATCHES * wlb.WINDOW == pytest.approx(step_s)
    assert wlb.imbalance(even, second) == pytest.approx(1.0)
