"""A batch keeps its place in the step wherever it goes."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data._utils.pin_memory import pin_memory

from loaders import Batch, DataLoader
from tests.loaders.arrays import ArraySource

ATTRIBUTES = (
    "step",
    "slot",
    "last_in_step",
    "cp_degree",
    "cp_rank",
    "num_loss_tokens",
    "step_loss_tokens",
    "num_ranks",
)


@pytest.fixture
def batch():
    batch = next(iter(DataLoader(ArraySource([3, 2, 4]), batch_size=3, max_tokens=16)))
    batch.cp_group = object()
    return batch


def saved_and_loaded(batch):
    file = io.BytesIO()
    torch.save(batch, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "through",
    [
        lambda batch: batch.to("cpu"),
        lambda batch: batch.to(torch.device("cpu"), non_blocking=True),
        lambda batch: batch.copy(),
        copy.copy,
        copy.deepcopy,
        lambda batch: pickle.loads(pickle.dumps(batch)),
        saved_and_loaded,
        pin_memory if torch.cuda.is_available() else copy.copy,
    ],
)
def test_attributes_and_inputs_survive(batch, through):
    other = through(batch)
    assert type(other) is Batch
    for name in ATTRIBUTES:
        assert getattr(other, name) == getattr(batch, name)
    np.testing.assert_array_equal(other.sample_ids, batch.sample_ids)
    np.testing.assert_array_equal(other.seq_lengths, batch.seq_lengths)
    assert set(other) == set(batch)
    for key, value in batch.items():
        assert torch.equal(other[key], value) if isinstance(value, torch.Tensor) else other[key] == value


def test_the_process_group_stays_in_its_process(batch):
    assert batch.to("cpu").cp_group is batch.cp_group
    assert copy.copy(batch).cp_group is batch.cp_group
    assert copy.deepcopy(batch).cp_group is batch.cp_group
    assert pickle.loads(pickle.dumps(batch)).cp_group is None


def test_a_copy_shares_tensors_and_not_the_dict(batch):
    other = batch.copy()
    other["extra"] = 1
    assert "extra" not in batch
    assert other["input_ids"] is batch["input_ids"]
    assert copy.deepcopy(batch)["input_ids"] is not batch["input_ids"]


def test_a_dtype_is_for_floating_point_inputs_only(batch):
    batch["pixel_values"] = torch.ones(2, 3)
    moved = batch.to("cpu", torch.bfloat16)
    assert moved["pixel_values"].dtype == torch.bfloat16
    assert moved["input_ids"].dtype == torch.int64
    assert batch.to(dtype=torch.float64)["pixel_values"].dtype == torch.float64


def test_an_attribute_can_be_set(batch):
    batch.step_loss_tokens = 17
    assert batch.step_loss_tokens == 17
    assert batch.to("cpu").step_loss_tokens == 17


def test_a_batch_rebuilt_from_its_items_says_what_it_lost(batch):
    rebuilt = type(batch)(dict(batch))
    with pytest.raises(AttributeError, match="rebuilt from its items alone"):
        _ = rebuilt.step
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = batch.nonsense
    assert not hasattr(batch, "__array__")


def test_u02_only_known_inputs_are_items_and_they_survive_a_filter_of_columns(batch):
    """A framework that keeps the names of a model's forward() keeps the borders too."""
    assert set(batch) == {
        "input_ids",
        "labels",
        "shift_labels",
        "position_ids",
        "seq_idx",
        "cu_seq_lens_q",
        "cu_seq_lens_k",
        "max_length_q",
        "max_length_k",
    }
    assert "Batch(step=0" in repr(batch)
