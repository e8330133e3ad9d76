"""Token means and sample means of a step, from what its batches say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.runtime import sample_weights, scale_loss
from loaders import DataLoader, open_source
from tests.loaders.arrays import ArraySource, MaskedSource, epoch_of, merged, on_all_ranks
from tests.loaders.test_borders import GivenRows
from tests.loaders.test_weights import LENGTHS, Samples
from tests.support.ranks import run_ranks


def labels_of(length, count):
    """Labels of which the last ``count`` count."""
    return [-100] * (length - count) + [1] * count


def loss_of(batches, loss_of_token, sample_mean=False):
    """Sum over all batches of what they would back-propagate, without averaging wrappers."""
    total = 0.0
    for batch in batches:
        labels = batch["shift_labels"]
        losses = loss_of_token(batch) * (labels[0] != -100)
        if sample_mean:
            losses = losses * sample_weights(batch, labels)
        weight = batch.step_samples if sample_mean else None
        total += float(scale_loss(losses.sum(), batch, "sum", total_weight=weight))
    return total


def test_u12_two_ranks_with_unequal_tokens_have_the_mean_over_tokens():
    source = GivenRows([[1] * 11, [2] * 91], [labels_of(11, 10), labels_of(91, 90)])
    loaders = on_all_ranks(source, 2, batch_size=1, max_tokens=100)
    [step] = merged([epoch_of(loader) for loader in loaders])
    assert {batch.step_loss_tokens for batch in step} == {100}
    assert sorted(batch.num_loss_tokens for batch in step) == [10, 90]
    mean = loss_of(step, lambda batch: torch.where(batch["input_ids"][0] == 1, 2.0, 1.0))
    assert mean == pytest.approx(1.1)


def test_u12_the_same_tokens_in_four_micro_batches_have_the_same_mean():
    sizes = [5, 5, 45, 45]
    rows = [[number + 1] * (size + 1) for number, size in enumerate(sizes)]
    source = GivenRows(rows, [labels_of(size + 1, size) for size in sizes])
    loader = DataLoader(source, batch_size=4, max_tokens=46, micro_batches=4)
    [step] = epoch_of(loader)
    # 10 tokens with loss 2.0, 90 with loss 1.0
    mean = loss_of(step, lambda batch: torch.where(batch["input_ids"][0] <= 2, 2.0, 1.0))
    assert len(step) == 4
    assert mean == pytest.approx(1.1)


def test_u12_sample_mean_weighs_two_samples_alike_whatever_their_labels():
    source = GivenRows([[1] * 4, [2] * 8], [labels_of(4, 2), labels_of(8, 6)])
    [[batch]] = epoch_of(DataLoader(source, batch_size=2, max_tokens=16))
    weights = sample_weights(batch, batch["shift_labels"]) / batch.step_samples
    assert batch.step_samples == 2
    by_sample = {1: weights[batch["input_ids"][0] == 1], 2: weights[batch["input_ids"][0] == 2]}
    assert by_sample[1][by_sample[1] > 0].tolist() == pytest.approx([1 / 4] * 2)
    assert by_sample[2][by_sample[2] > 0].tolist() == pytest.approx([1 / 12] * 6)
    assert float(weights.sum()) == pytest.approx(1.0)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=20),
    ranks=st.integers(1, 3),
    sync=st.sampled_from(["step", "micro_batch"]),
)
def test_sample_weights_of_a_step_sum_to_its_samples_with_labels(lengths, ranks, sync):
    source = MaskedSource(lengths)
    loaders = on_all_ranks(source, ranks, batch_size=4, max_tokens=24, oversize="split", sync=sync)
    for step in merged([epoch_of(loader) for loader in loaders]):
        total = sum(float(sample_weights(batch, batch["shift_labels"]).sum()) for batch in step)
        assert {batch.step_samples for batch in step} == {round(total)}
        assert total == pytest.approx(round(total), abs=1e-4)


def test_shared_samples_count_once():
    loaders = on_all_ranks(ArraySource([30, 6]), 2, batch_size=1, max_tokens=16, cp_degrees=(1, 2))
    [step] = merged([epoch_of(loader) for loader in loaders])
    assert {batch.step_samples for batch in step} == {2}


def test_where_labels_are_counted_when_read_samples_are_too():
    source = open_source(Samples(), length=np.array(LENGTHS))
    expected = MaskedSource(LENGTHS).loss_tokens()
    for step in epoch_of(DataLoader(source, batch_size=3, max_tokens=12)):
        rows = [int(row) for batch in step for row in batch.sample_ids[:, 1]]
        assert {batch.step_samples for batch in step} == {int(np.count_nonzero(expected[rows]))}


def _samples_on_a_real_rank(rank):
    source = open_source(Samples(), length=np.array(LENGTHS))
    return [(batch.step, batch.step_samples) for batch in DataLoader(source, batch_size=2, max_tokens=12)]


@pytest.mark.slow
def test_real_ranks_sum_their_samples():
    first, second = run_ranks(_samples_on_a_real_rank, 2)
    expected = MaskedSource(LENGTHS).loss_tokens()
    for step, rows in enumerate(([0, 1, 2, 3], [4, 5, 6])):
        told = {samples for number, samples in first + second if number == step}
        assert told == {int(np.count_nonzero(expected[rows]))}


def test_a_step_whose_samples_are_not_known_refuses_the_sample_mean():
    source = open_source(Samples(), length=np.array(LENGTHS))
    loader = DataLoader(
        source, batch_size=3, max_tokens=12, collate_fn=lambda rows: {"x": torch.zeros(len(rows))}
    )
    batch = next(iter(loader))
    assert batch.step_samples == -1
    with pytest.raises(ValueError, match="loss weight must be finite, 0 or more; got -1"):
        scale_loss(torch.ones(()), batch, total_weight=batch.step_samples)
