"""Memory is used again, and never while anything still refers to it."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch

from loaders.batches.recycle import SMALLEST_BYTES, Recycler

SIZE = SMALLEST_BYTES


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_comes_back_when_the_array_is_gone():
    recycler = Recycler()
    array = recycler.empty(SIZE, np.int64)
    first = address(array)
    del array
    assert address(recycler.empty(SIZE, np.int64)) == first
    assert address(recycler.empty(SIZE - 9, np.int64)) == first, "a slightly smaller one fits as well"


@pytest.mark.parametrize(
    "keep",
    [
        lambda array: array[5:],
        lambda array: array[:-1][3:].view(np.uint8),
        lambda array: array.reshape(2, -1),
        torch.from_numpy,
        lambda array: torch.from_numpy(array)[1:].unsqueeze(0),
        lambda array: torch.from_numpy(array[1:]),
        lambda array: torch.from_numpy(array[1:])[2:].numpy(),
    ],
)
def test_memory_is_not_used_again_while_a_view_of_it_lives(keep):
    recycler = Recycler()
    array = recycler.empty(SIZE, np.int64)
    array[:] = 7
    view = keep(array)
    expected = np.asarray(view).copy()
    del array
    gc.collect()
    others = [recycler.empty(SIZE, np.int64) for _ in range(3)]
    for other in others:
        other[:] = 1
    np.testing.assert_array_equal(np.asarray(view), expected)


def test_waiting_memory_is_bounded():
    recycler = Recycler(kept_bytes=3 * 8 * SIZE)
    arrays = [recycler.empty(SIZE, np.int64) for _ in range(10)]
    del arrays
    assert recycler._free_bytes <= 3 * 8 * SIZE


def test_small_arrays_are_plain():
    assert Recycler().empty(3, np.int32).base is None


def test_threads_share_it():
    recycler = Recycler()
    errors = []

    def work(value):
        for _ in range(200):
            array = recycler.empty(SIZE // 8, np.int64)
            array[:] = value
            if not (array == value).all():
                errors.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
