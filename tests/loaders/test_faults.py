"""Samples that cannot be read: named on the way out of a worker, or skipped with all ranks aligned."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from loaders import DataLoader, open_source
from loaders.faults import SampleError
from loaders.quarantine import TooManyRejects
from tests.loaders.arrays import ArraySource, MaskedSource, epoch_of, ids_of, merged, on_all_ranks


class Brittle(ArraySource):
    """Some rows cannot be read."""

    def __init__(self, lengths, bad):
        super().__init__(lengths, name="brittle")
        self.bad = set(bad)

    def read(self, rows):
        for row in rows:
            if int(row) in self.bad:
                raise KeyError("missing entry")
        return super().read(rows)


class MaskedBrittle(Brittle, MaskedSource):
    """The same with masked labels."""

    def __init__(self, lengths, bad):
        Brittle.__init__(self, lengths, bad)
        self.masked = 3


class Transformed(Dataset):
    """A transform that fails on sample 77."""

    def __len__(self):
        return 100

    def __getitem__(self, row):
        sample = {"tokens": np.arange(1, 2 + row % 7)} if row != 77 else {}
        return {"input_ids": sample["tokens"]}


def lengths_of_transformed():
    return np.array([1 + row % 7 for row in range(100)])


# torch takes 5 s to end each worker once one has raised
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_u59_an_error_of_a_transform_names_source_row_stage_and_keeps_its_trace(num_workers):
    source = open_source(Transformed(), length=lengths_of_transformed(), labels=False)
    loader = DataLoader(source, batch_size=10, max_tokens=64, num_workers=num_workers)
    with pytest.raises(
        SampleError, match=r"Transformed, sample 77, stage read: KeyError: 'tokens'"
    ) as caught:
        list(loader)
    assert isinstance(caught.value, KeyError)
    if num_workers:
        assert 'sample["tokens"]' in str(caught.value)  # the trace came with it
    else:
        assert isinstance(caught.value.__cause__, KeyError)


def test_u59_an_error_while_lengths_are_counted_names_the_row():
    with pytest.raises(SampleError, match=r"Transformed, sample 77, stage length: KeyError: 'tokens'"):
        DataLoader(Transformed(), batch_size=10, max_tokens=64)


def test_a_row_without_a_length_is_left_out_and_written_down(tmp_path):
    path = tmp_path / "quarantine.jsonl"
    loaders = on_all_ranks(
        Transformed(), 2, batch_size=10, max_tokens=64, on_error="skip", max_errors=1, quarantine=path
    )
    together = ids_of(merged([epoch_of(loader) for loader in loaders]))
    assert sorted(row for step in together for _, row in step) == [row for row in range(100) if row != 77]
    [line] = [json.loads(text) for text in path.read_text().splitlines()]
    assert (line["row"], line["stage"], line["error"]) == (77, "length", "KeyError")
    assert 'sample["tokens"]' in line["trace"]
    with pytest.raises(TooManyRejects, match=r"more than the 0 allowed \(max_errors=0\)"):
        DataLoader(Transformed(), max_tokens=64, on_error="skip", max_errors=0)


def test_an_error_of_collate_names_the_samples_of_its_batch():
    def collate(samples):
        raise IndexError("no such axis")

    loader = DataLoader(ArraySource([3, 4]), batch_size=2, max_tokens=16, collate_fn=collate)
    with pytest.raises(SampleError, match=r"stage collate_fn: IndexError: no such axis.*arrays, row [01]"):
        list(loader)


@settings(max_examples=60)
@given(
    data=st.data(),
    masked=st.booleans(),
    ranks=st.integers(1, 4),
    sync=st.sampled_from(["step", "micro_batch"]),
)
def test_skipped_samples_keep_their_place_and_lose_their_weight(data, masked, ranks, sync):
    lengths = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=30))
    bad = data.draw(st.sets(st.integers(0, len(lengths) - 1)))
    arguments = {"batch_size": 2, "max_tokens": 32, "oversize": "split", "sync": sync}
    kind, whole = (MaskedBrittle, MaskedSource) if masked else (Brittle, ArraySource)
    good = merged([epoch_of(one) for one in on_all_ranks(whole(lengths), ranks, **arguments)])
    skipping = on_all_ranks(kind(lengths, bad), ranks, on_error="skip", max_errors=len(lengths), **arguments)
    if masked and bad and any(n > 32 for n in lengths):
        return  # such rows are read to plan their step, and raise
    found = merged([epoch_of(one) for one in skipping])
    assert [len(step) for step in found] == [len(step) for step in good]
    for ours, theirs in zip(found, good, strict=True):
        for batch, other in zip(ours, theirs, strict=True):
            assert batch.sample_ids.tolist() == other.sample_ids.tolist()
            assert batch["input_ids"].shape == other["input_ids"].shape
            assert batch["cu_seq_lens_q"].tolist() == other["cu_seq_lens_q"].tolist()
            assert batch.step_loss_tokens == other.step_loss_tokens
            assert batch.num_loss_tokens == int((batch["labels"] != -100).sum())
            bounds = batch["cu_seq_lens_q"].tolist()
            for (_, row), a, b in zip(
                batch.sample_ids.tolist(), bounds[:-1], bounds[1:], strict=bool(len(batch.sample_ids))
            ):
                if row in bad:
                    assert bool((batch["labels"][0, a:b] == -100).all())
                else:
                    assert torch.equal(batch["labels"][0, a:b], other["labels"][0, a:b])
                    assert torch.equal(batch["input_ids"][0, a:b], other["input_ids"][0, a:b])
    if ranks == 1:
        assert skipping[0].metrics()["skipped"] == len(bad)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_budget_is_exact_with_workers_and_counts_a_row_once(tmp_path, num_workers):
    path = tmp_path / "quarantine.jsonl"
    arguments = {"batch_size": 5, "max_tokens": 32, "num_workers": num_workers, "on_error": "skip"}
    bad = [3, 11, 29]
    loader = DataLoader(Brittle([5] * 40, bad), max_errors=3, quarantine=path, **arguments)
    for _ in range(2):
        assert len(epoch_of(loader)) == 8
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert [line["row"] for line in lines] == bad
    assert {(line["source"], line["stage"], line["error"]) for line in lines} == {
        ("brittle", "read", "KeyError")
    }
    loader = DataLoader(Brittle([5] * 40, bad), max_errors=2, **arguments)
    with pytest.raises(
        TooManyRejects, match=r"3 of 40 rows of brittle have samples that cannot be read, more than the 2"
    ):
        list(loader)


def test_a_row_that_is_not_as_long_as_it_was_is_skipped():
    class Shrunk(ArraySource):
        def read(self, rows):
            if 2 not in rows:
                return super().read(rows)
            self.row_lengths = self.row_lengths.copy()
            self.row_lengths[2] = 1
            return super().read(rows)

    loader = DataLoader(Shrunk([5, 6, 7, 4]), batch_size=4, max_tokens=32, on_error="skip", max_errors=1)
    [[batch]] = epoch_of(loader)
    assert sorted(batch.seq_lengths.tolist()) == [4, 5, 6, 7]
    assert batch.num_loss_tokens == 4 + 5 + 3


def test_a_collate_fn_is_given_the_skipped_sample_without_labels():
    loader = DataLoader(
        Brittle([5, 6], [1]),
        batch_size=2,
        max_tokens=16,
        on_error="skip",
        max_errors=1,
        collate_fn=lambda samples: {"counts": [int((one["labels"] != -100).sum()) for one in samples]},
    )
    [[batch]] = epoch_of(loader)
    assert sorted(batch["counts"]) == [0, 5]
    assert batch.num_loss_tokens == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on_error": "ignore"}, "on_error must be one of raise, skip"),
        ({"on_error": "skip", "max_errors": 1.5}, "max_errors must be"),
        ({"quarantine": "q.jsonl"}, "quarantine only has an effect"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        DataLoader(ArraySource([3]), max_tokens=8, **arguments)
