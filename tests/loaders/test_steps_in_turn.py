"""Steps that follow each other are looked up together, and are the same as looked up one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.catalog import open_catalog, sample_table
from loaders.order import steps as steps_module
from loaders.order.permutation import SourceOrder
from loaders.order.steps import Steps
from loaders.state import Cursor
from tests.loaders.arrays import ArraySource, MaskedSource

COLUMNS = ("num_tokens", "source", "row", "start", "num_loss_tokens")


class Counted(SourceOrder):
    """Notes how many positions are looked up at a time."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.asked = []

    def locate(self, epoch, positions):
        self.asked.append(positions.size)
        return super().locate(epoch, positions)


def steps_of(rows, samples, *, kind=ArraySource, oversize="drop", drop_last=False):
    lengths = np.random.default_rng(rows).integers(0, 60, rows)
    catalog = open_catalog(kind(lengths), capacity=40, oversize=oversize)
    order = Counted(len(catalog), shuffle=True, seed=3)
    return Steps(order=order, catalogs=[catalog], samples=samples, tokens=None, drop_last=drop_last)


def assert_as_one_by_one(steps, cursor, table, stop):
    source, place = SourceOrder(len(steps.catalogs[0]), shuffle=True, seed=3).locate(
        cursor.epoch, np.arange(cursor.position, stop)
    )
    expected = sample_table(steps.catalogs, source, place)
    for name in COLUMNS:
        column, other = getattr(table, name), getattr(expected, name)
        assert column.dtype == other.dtype
        np.testing.assert_array_equal(column, other)


@pytest.mark.parametrize("oversize", ["drop", "truncate", "split"])
@given(
    rows=st.integers(1, 80),
    samples=st.integers(1, 9),
    jumps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 79), st.integers(1, 9)), max_size=4),
)
def test_steps_are_those_looked_up_one_by_one_wherever_one_goes_on(oversize, rows, samples, jumps):
    steps = steps_of(rows, samples, kind=MaskedSource, oversize=oversize)
    for epoch, position, count in [(0, 0, 30), *jumps]:
        cursor = Cursor(epoch=epoch, position=position)
        for _ in range(count):
            found = steps.members(cursor)
            if found is None:
                assert cursor.position >= len(steps.catalogs[0])
                break
            table, behind = found
            assert_as_one_by_one(steps, cursor, table, behind.position)
            cursor = behind


def test_a_step_alone_is_looked_up_alone_and_followers_together(monkeypatch):
    monkeypatch.setattr(steps_module, "AHEAD", 40)
    steps = steps_of(200, 4)
    cursor = Cursor()
    for _ in range(12):
        _, cursor = steps.members(cursor)
    assert steps.order.asked == [4, 40, 40]
    steps.members(Cursor(position=100))
    assert steps.order.asked == [4, 40, 40, 4]


def test_rows_that_are_cut_are_not_looked_up_before_their_step():
    steps = steps_of(200, 4, oversize="truncate")
    cursor = Cursor()
    for _ in range(3):
        _, cursor = steps.members(cursor)
    assert steps.order.asked == [4, 4, 4]
