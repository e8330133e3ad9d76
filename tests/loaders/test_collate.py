"""The flat layout (cases U02, U04, U05)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loaders import DataLoader
from loaders.batches import reference
from loaders.batches.collate import lay_out
from loaders.sources.base import Rows
from tests.loaders.arrays import ArraySource, MaskedSource

samples = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), min_size=1, max_size=6)


def flat(lists, dtype=np.int32):
    return np.array([value for one in lists for value in one], dtype), np.array(
        [len(one) for one in lists], np.int32
    )


@given(
    samples=samples,
    masked=st.booleans(),
    data=st.data(),
    dtype=st.sampled_from([np.uint16, np.int32, np.int64]),
)
def test_kernels_equal_their_slow_twin(samples, masked, data, dtype):
    labels = None
    if masked:
        mask = st.sampled_from([-100, 1, 2])
        labels = [data.draw(st.lists(mask, min_size=len(one), max_size=len(one))) for one in samples]
    tokens, lengths = flat(samples, dtype)
    inputs, counted = lay_out(tokens, lengths, None if labels is None else flat(labels, np.int64)[0])
    for name, row in reference.lay_out(samples, labels).items():
        assert inputs[name].tolist() == [row.tolist()], name
    assert counted == int((inputs["shift_labels"] != -100).sum()) == int((inputs["labels"] != -100).sum())


def test_keys_shapes_and_dtypes_are_those_of_the_contract():
    inputs, _ = lay_out(np.arange(5, dtype=np.int32), np.array([3, 2], np.int32))
    for name in ("input_ids", "labels", "shift_labels", "position_ids"):
        assert inputs[name].shape == (1, 5), name
        assert inputs[name].dtype == torch.int64, name
    assert inputs["seq_idx"].dtype == torch.int32
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        assert inputs[name].tolist() == [0, 3, 5]
        assert inputs[name].dtype == torch.int32
    assert type(inputs["max_length_q"]) is int
    assert inputs["max_length_q"] == inputs["max_length_k"] == 3


def test_u04_the_last_token_of_a_document_does_not_predict_the_next_documents_first():
    inputs, counted = lay_out(np.arange(1, 7), np.array([3, 3], np.int32))
    assert inputs["shift_labels"].tolist() == [[2, 3, -100, 5, 6, -100]]
    assert inputs["labels"].tolist() == [[-100, 2, 3, -100, 5, 6]]
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2]]
    assert counted == 4


def test_u04_targets_are_counted_the_same_per_batch_and_per_step():
    loader = DataLoader(ArraySource([3, 3, 4, 2]), batch_size=4, max_tokens=6)
    batches = list(loader)
    assert len(batches) == 2
    assert sum(batch.num_loss_tokens for batch in batches) == 8
    assert {batch.step_loss_tokens for batch in batches} == {8}


class Answers(ArraySource):
    """Two chats of 6 and 5 tokens, answers at 4..5 and 2..4, end-of-turn (2) equal to padding."""

    rows = ([5, 5, 5, 5, 6, 2], [5, 5, 6, 2, 6])
    targets = ([-100] * 4 + [6, 2], [-100] * 2 + [6, 2, 6])

    def __init__(self):
        super().__init__([6, 5], name="chats")

    def loss_tokens(self):
        return np.array([2, 3])

    def read(self, rows):
        return Rows(
            input_ids=np.concatenate([self.rows[row] for row in rows]),
            offsets=np.cumsum([0, *(len(self.rows[row]) for row in rows)]),
            labels=np.concatenate([self.targets[row] for row in rows]),
            columns={"source_name": [f"chat {row}" for row in rows], "weights": [[0.5] * 6 for row in rows]},
        )


def test_u05_answer_spans_and_side_columns_are_carried_through_packing():
    [batch] = DataLoader(Answers(), batch_size=2, max_tokens=16)
    order = batch.sample_ids[:, 1].tolist()
    trainable = np.flatnonzero(batch["labels"][0] != -100).tolist()
    assert trainable == ([4, 5, 8, 9, 10] if order == [0, 1] else [2, 3, 4, 9, 10])
    assert batch.num_loss_tokens == 5
    assert batch.columns["source_name"] == [f"chat {row}" for row in order]
    assert batch.columns["weights"] == [[0.5] * 6] * 2


def test_pieces_of_a_split_sample_are_samples_of_their_own():
    batches = list(DataLoader(MaskedSource([121]), max_tokens=60, oversize="split"))
    pieces = sorted((int(start), batch) for batch in batches for start in batch.starts)
    assert [start for start, _ in pieces] == [0, 60, 120]
    for _, batch in pieces:
        assert batch["position_ids"][0, 0] == 0
        assert batch["labels"][0, 0] == -100
        assert batch.last_in_step == (batch is batches[-1])
    assert sum(batch.num_loss_tokens for batch in batches) == batches[0].step_loss_tokens


@pytest.mark.parametrize("pad_to", [16, (10, 16)])
def test_pad_to_gives_static_shapes_and_trains_nothing_more(pad_to):
    source = ArraySource([7, 9, 3, 2, 5, 8, 4])
    plain = list(DataLoader(source, batch_size=2, max_tokens=16))
    padded = list(DataLoader(source, batch_size=2, max_tokens=16, pad_to=pad_to))
    sizes = {pad_to} if isinstance(pad_to, int) else set(pad_to)
    assert {batch["input_ids"].shape[1] for batch in padded} <= sizes
    for a, b in zip(plain, padded, strict=True):
        T, size = a["input_ids"].shape[1], b["input_ids"].shape[1]
        assert torch.equal(a["input_ids"], b["input_ids"][:, :T])
        assert (b["labels"][:, T:] == -100).all()
        assert (b["shift_labels"][:, T:] == -100).all()
        assert b.num_loss_tokens == a.num_loss_tokens
        assert b["cu_seq_lens_q"].tolist() == a["cu_seq_lens_q"].tolist() + ([size] if size > T else [])
        assert b["position_ids"][0, T:].tolist() == list(range(size - T))
        assert b["max_length_q"] == max(a["max_length_q"], size - T)
        assert b.seq_lengths.tolist() == a.seq_lengths.tolist()


def test_a_users_collate_fn_makes_the_inputs_and_the_batch_keeps_its_place():
    def pad(samples):
        longest = max(len(sample["input_ids"]) for sample in samples)
        rows = [
            torch.nn.functional.pad(sample["input_ids"], (0, longest - len(sample["input_ids"])))
            for sample in samples
        ]
        return {"input_ids": torch.stack(rows), "row": [sample["row"] for sample in samples]}

    batches = list(
        DataLoader(ArraySource([3, 2, 4]), batch_size=3, max_tokens=16, collate_fn=pad, num_workers=1)
    )
    assert batches[0]["input_ids"].shape == (3, 4)
    assert batches[0]["row"] == batches[0].sample_ids[:, 1].tolist()
    assert batches[0].step_loss_tokens == 6
    with pytest.raises(TypeError, match="must return a mapping of model inputs, it returned list"):
        list(DataLoader(ArraySource([3]), max_tokens=16, collate_fn=list))


class Lying(ArraySource):
    def lengths(self):
        return self.row_lengths + (np.arange(len(self)) == 2)


def test_tokens_that_differ_from_the_planned_length_are_refused_with_their_row():
    with pytest.raises(RuntimeError, match="arrays, row 2: 5 tokens were read where its length said 6"):
        list(DataLoader(Lying([5] * 4), batch_size=4, max_tokens=32))


class Overcounting(MaskedSource):
    def loss_tokens(self):
        return super().loss_tokens() + (np.arange(len(self)) == 1)


def test_labels_that_differ_from_the_metadata_are_refused_with_their_row():
    with pytest.raises(
        RuntimeError, match="masked, row 1: 4 labels count in the loss where the metadata said 5"
    ):
        list(DataLoader(Overcounting([6] * 3), batch_size=4, max_tokens=32))
