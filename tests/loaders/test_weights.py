"""Lengths that were given say nothing of masked labels: then the step's weight is counted when it is read."""

from __future__ import annotations

import numpy as np
import pytest

from balancer import Topology
from loaders import DataLoader, open_source
from tests.loaders.arrays import MaskedSource, epoch_of
from tests.support.ranks import run_ranks

LENGTHS = [9, 4, 12, 7, 3, 8, 5]


class Samples:
    """A map-style data set with masked labels."""

    def __init__(self):
        self.source = MaskedSource(LENGTHS)

    def __len__(self):
        return len(self.source)

    def __getitem__(self, row):
        return {"input_ids": self.source.tokens(row).tolist(), "labels": self.source.labels(row).tolist()}


def expected():
    return MaskedSource(LENGTHS).loss_tokens()


def check(steps):
    for step in steps:
        rows = {int(row) for batch in step for row in batch.sample_ids[:, 1]}
        assert {batch.step_loss_tokens for batch in step} == {int(expected()[list(rows)].sum())}
        assert sum(batch.num_loss_tokens for batch in step) == step[0].step_loss_tokens
        assert [batch.last_in_step for batch in step] == [False] * (len(step) - 1) + [True]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_one_rank_counts_its_own_labels(num_workers):
    source = open_source(Samples(), length=np.array(LENGTHS))
    assert not source.knows_loss_tokens
    check(epoch_of(DataLoader(source, batch_size=3, max_tokens=12, num_workers=num_workers)))


def test_a_resume_within_such_a_step_starts_at_its_beginning():
    source = open_source(Samples(), length=np.array(LENGTHS))
    loader = DataLoader(source, batch_size=3, max_tokens=12)
    next(iter(loader))
    assert loader.state_dict()["position"] == 0


def test_without_given_lengths_labels_are_counted_beforehand():
    source = open_source(Samples())
    assert source.knows_loss_tokens
    check(epoch_of(DataLoader(source, batch_size=3, max_tokens=12)))


def test_ranks_that_are_only_played_cannot_be_asked():
    source = open_source(Samples(), length=np.array(LENGTHS))
    loader = DataLoader(source, batch_size=3, max_tokens=12, topology=Topology(ranks=2), rank=0)
    with pytest.raises(RuntimeError, match="length= out so that labels are counted once beforehand"):
        next(iter(loader))


def _on_a_real_rank(rank):
    source = open_source(Samples(), length=np.array(LENGTHS))
    return [
        (batch.step, batch.step_loss_tokens, batch.num_loss_tokens)
        for batch in DataLoader(source, batch_size=2, max_tokens=12)
    ]


def test_real_ranks_sum_over_the_step():
    first, second = run_ranks(_on_a_real_rank, 2)
    for step, rows in enumerate(([0, 1, 2, 3], [4, 5, 6])):
        mine = [batch for batch in first + second if batch[0] == step]
        assert {batch[1] for batch in mine} == {int(expected()[rows].sum())}
        assert sum(batch[2] for batch in mine) == mine[0][1]
