"""Evaluation: every sample once on any number of ranks, and means as one process has them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer import Topology
from loaders import Mixture
from loaders.evaluation import Mean, evaluation
from tests.loaders.arrays import ArraySource, MaskedSource, epoch_of, ids_of, merged
from tests.support.ranks import run_ranks


def value_of(batch):
    """A made-up loss of each label: so that every lost, repeated or moved token would be seen."""
    labels = batch["shift_labels"][0].numpy()
    real = labels != -100
    return float(np.sin(batch["input_ids"][0].numpy()[real] * 1.0).sum()), int(real.sum())


def expected_mean(source):
    total, count = 0.0, 0
    for row in range(len(source)):
        tokens, labels = source.tokens(row), source.labels(row)
        for t in range(1, len(tokens)):
            if labels[t] != -100:
                total, count = total + math.sin(float(tokens[t - 1])), count + 1
    return total / count if count else math.nan


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=25).filter(any),
    ranks=st.integers(1, 4),
    batch_size=st.integers(1, 4),
    degrees=st.sampled_from([(1,), (1, 2)]),
)
def test_the_mean_over_all_ranks_is_that_of_the_samples_one_by_one(lengths, ranks, batch_size, degrees):
    source = MaskedSource(lengths)
    mean = Mean()
    loaders = [
        evaluation(
            source,
            max_tokens=40,
            batch_size=batch_size,
            topology=Topology(ranks=ranks),
            rank=rank,
            cp_degrees=tuple(d for d in degrees if d <= ranks),
        )
        for rank in range(ranks)
    ]
    seen = []
    for loader in loaders:
        for batch in loader:
            mean.add(*value_of(batch))
            if batch.cp_rank == 0:
                seen += batch.sample_ids[:, 1].tolist()
    assert sorted(seen) == [row for row, n in enumerate(lengths) if n]
    assert mean.over_ranks() == pytest.approx(expected_mean(source), rel=1e-12, nan_ok=True)


def test_every_iteration_is_the_same():
    loader = evaluation(ArraySource([3, 4, 5]), max_tokens=8)
    assert ids_of(epoch_of(loader)) == ids_of(epoch_of(loader)) == [[(0, 0)], [(0, 1)], [(0, 2)]]


def _mean_on_a_real_rank(rank):
    mean = Mean()
    for batch in evaluation(MaskedSource([9, 4, 12, 7, 3, 8, 5]), max_tokens=12, batch_size=2):
        mean.add(*value_of(batch))
    return mean.over_ranks(), mean.weight


@pytest.mark.slow
def test_real_ranks_agree_on_the_mean():
    first, second = run_ranks(_mean_on_a_real_rank, 2)
    assert first[0] == second[0] == pytest.approx(expected_mean(MaskedSource([9, 4, 12, 7, 3, 8, 5])))
    assert first[1] > 0
    assert second[1] > 0


@pytest.mark.parametrize(
    "wrong", [{"shuffle": True}, {"drop_last": True}, {"oversize": "drop"}, {"on_error": "skip"}]
)
def test_what_leaves_samples_out_is_refused(wrong):
    with pytest.raises(ValueError, match="has no place in an evaluation"):
        evaluation(ArraySource([3]), max_tokens=8, **wrong)


def test_a_mixture_must_give_each_sample_once():
    sources = {"a": ArraySource([3, 4]), "b": ArraySource([5])}
    weights = {"a": 0.5, "b": 0.5}
    with pytest.raises(ValueError, match="stop='all_exhausted' and repeats nothing"):
        evaluation(Mixture(sources, weights, by="samples"), max_tokens=8)
    once = Mixture(sources, weights, by="samples", stop="all_once")
    steps = ids_of(merged([epoch_of(evaluation(once, max_tokens=8))]))
    assert sorted(sample for step in steps for sample in step) == [(0, 0), (0, 1), (1, 0)]


def test_nothing_counted_has_no_mean():
    assert math.isnan(Mean().over_ranks())
