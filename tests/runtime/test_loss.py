"""Weights of a step's losses do not depend on how the step was cut."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balancer import runtime
from tests.runtime.batches import PlainBatch


def averaged_loss(counts_and_means, num_ranks):
    """What DDP makes of one step: [(rank, tokens, mean loss)] -> mean over ranks of their summed losses."""
    step_tokens = sum(tokens for _, tokens, _ in counts_and_means)
    total = torch.zeros(())
    for _, tokens, mean in counts_and_means:
        batch = PlainBatch(num_loss_tokens=tokens, step_loss_tokens=step_tokens, num_ranks=num_ranks)
        total = total + runtime.scale_loss(torch.tensor(tokens * mean), batch)
    return float(total / num_ranks)


def test_unequal_ranks_give_the_token_mean_and_not_the_mean_of_means():
    assert averaged_loss([(0, 10, 2.0), (1, 90, 1.0)], 2) == pytest.approx(1.1)


def test_accumulation_steps_give_the_same():
    cut = [(0, 5, 2.0), (0, 5, 2.0), (1, 45, 1.0), (1, 45, 1.0)]
    assert averaged_loss(cut, 2) == pytest.approx(1.1)


@given(counts=st.lists(st.integers(0, 50), min_size=1, max_size=8), num_ranks=st.integers(1, 4))
def test_auxiliary_weights_of_a_step_add_up_to_one(counts, num_ranks):
    batches = [
        PlainBatch(num_loss_tokens=n, step_loss_tokens=sum(counts), num_ranks=num_ranks) for n in counts
    ]
    expected = 1.0 if sum(counts) else 0.0
    assert sum(map(runtime.auxiliary_weight, batches)) / num_ranks == pytest.approx(expected)
    assert sum(runtime.auxiliary_weight(batch, "sum") for batch in batches) == pytest.approx(expected)


def test_summing_wrappers_omit_the_ranks():
    batch = PlainBatch(step_loss_tokens=8, num_ranks=4)
    assert float(runtime.scale_loss(torch.tensor(2.0), batch, reduction="sum")) == 0.25
    assert float(runtime.scale_loss(torch.tensor(2.0), batch)) == 1.0


def test_a_step_without_labels_still_runs_backward():
    weight = torch.ones(3, requires_grad=True)
    runtime.scale_loss((weight * 2).sum(), PlainBatch(step_loss_tokens=0)).backward()
    assert weight.grad.tolist() == [0.0, 0.0, 0.0]


def test_an_unknown_reduction_gets_a_sentence():
    with pytest.raises(ValueError, match='"mean"'):
        runtime.scale_loss(torch.ones(()), PlainBatch(step_loss_tokens=1), reduction="average")


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_weight_gets_a_sentence(weight):
    with pytest.raises(ValueError, match="loss weight must be finite, 0 or more"):
        runtime.scale_loss(torch.ones(()), PlainBatch(step_loss_tokens=1), total_weight=weight)


@pytest.mark.parametrize("shape", [(3,), (1, 4), (0,)])
def test_losses_that_were_not_summed_get_a_sentence(shape):
    with pytest.raises(ValueError, match="sum over this rank's tokens"):
        runtime.scale_loss(torch.ones(shape), PlainBatch(step_loss_tokens=1))
