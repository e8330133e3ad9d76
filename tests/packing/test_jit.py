"""Compiled kernels on disk serve all processes, whichever of them compile at once."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

SOURCE = """
from packing._jit import kernel

@kernel
def total(values):
    found = values[0]
    for value in values[1:]:
        found += value
    return found
"""


@pytest.fixture
def compiler(tmp_path):
    """Makes the same kernel afresh, as another process would."""
    path = tmp_path / "kernel_of_a_test.py"
    path.write_text(SOURCE)

    def make():
        spec = importlib.util.spec_from_file_location("kernel_of_a_test", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.total

    return make


def test_what_one_process_compiled_the_next_one_loads(compiler):
    assert compiler()(np.array([1, 2])) == 3
    later = compiler()
    assert later(np.array([3, 4])) == 7
    assert sum(later.stats.cache_hits.values()) == 1


def test_two_that_compile_other_types_at_once_leave_no_code_under_a_wrong_name(compiler):
    whole, real = compiler(), compiler()
    file, other = whole._cache._cache_file, real._cache._cache_file
    save_index, other_save_index, held = file._save_index, other._save_index, []

    def save_while_another_does(overloads):
        held.append(overloads)
        real(np.array([0.5, 0.25]))  # reads the index before this one is written, and ends before our code is

    def save_behind_the_first(overloads):
        save_index(held[0])
        other_save_index(overloads)

    file._save_index, other._save_index = save_while_another_does, save_behind_the_first
    assert whole(np.array([1, 2])) == 3
    for values in ([1, 2], [0.5, 0.25]):
        assert compiler()(np.array(values)) == sum(values)
