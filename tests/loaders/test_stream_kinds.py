"""Streams of several kinds: of `datasets`, with unusual states, with idle workers; and how samples travel."""

from __future__ import annotations

import itertools
import logging
import pickle
from dataclasses import replace

import datasets
import numpy as np
import pytest
from datasets.distributed import split_dataset_by_node
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer import CostModel, Topology, plan_step
from loaders import DataLoader
from loaders.sources.base import Rows
from loaders.streams.intake import Held
from loaders.streams.moves import packed, unpacked, wanted_of
from packing.table import SampleTable
from tests.loaders.arrays import epoch_of
from tests.loaders.streams import Stateful, Stream, contents
from tests.support.ranks import run_ranks

ROWS = 29


def hugging_face(buffer_size=None):
    rows = datasets.Dataset.from_dict(
        {
            "input_ids": [[row] * (1 + row % 5) for row in range(ROWS)],
            "key": [f"row {row}" for row in range(ROWS)],
        }
    )
    stream = rows.to_iterable_dataset(num_shards=4)
    return stream if buffer_size is None else stream.shuffle(seed=1, buffer_size=buffer_size)


@pytest.mark.parametrize("buffer_size", [None, 8])
def test_a_stream_of_datasets_is_resumed_behind_every_step(buffer_size, caplog):
    arguments = {"step_tokens": 9, "max_tokens": 16, "exchange": True}
    with caplog.at_level(logging.WARNING):
        loader = DataLoader(hugging_face(buffer_size), **arguments)
    assert ("holds in a shuffle buffer" in caplog.text) == (buffer_size is not None)
    steps, states = [], []
    for batch in loader:
        steps.append([batch])
        states.append(pickle.loads(pickle.dumps(loader.state_dict())))
    rows = sorted({int(row) for [batch] in steps for row in batch["input_ids"][0]})
    assert rows == list(range(ROWS))
    for at, state in enumerate(states):
        other = DataLoader(hugging_face(buffer_size), **arguments)
        other.load_state_dict(state)
        assert contents([[batch] for batch in other]) == contents(steps[at + 1 :])
    second = [int(row) for batch in loader for row in batch["input_ids"][0]]  # another epoch
    assert sorted(set(second)) == list(range(ROWS))


def _hugging_face_on_a_real_rank(rank):
    stream = split_dataset_by_node(hugging_face(), rank, 2)
    arguments = {"batch_size": 4, "max_tokens": 16, "exchange": True, "cp_degrees": (1, 2)}
    loader = DataLoader(stream, **arguments)
    told, half = [], None
    for batch in loader:
        told.append((batch.step, batch["input_ids"].tolist(), batch.columns.get("key")))
        if batch.last_in_step and batch.step == 1:
            half = loader.state_dict()
    other = DataLoader(split_dataset_by_node(hugging_face(), rank, 2), **arguments)
    other.load_state_dict(half)
    return told, [(batch.step, batch["input_ids"].tolist(), batch.columns.get("key")) for batch in other]


def test_streams_of_datasets_split_by_node_are_exchanged_and_resumed():
    heard = run_ranks(_hugging_face_on_a_real_rank, 2)
    keys = [key for told, _ in heard for batch in told for key in batch[2] or []]
    assert set(keys) == {f"row {row}" for row in range(ROWS)}
    for told, rest in heard:
        assert rest == [batch for batch in told if batch[0] > 1]


@pytest.mark.slow
@pytest.mark.parametrize("exchange", [False, True])
def test_u31_workers_without_samples_are_fine(exchange):
    loader = DataLoader(Stream([3, 4]), max_tokens=16, batch_size=1, num_workers=4, exchange=exchange)
    assert sorted(batch["input_ids"].shape[1] for [batch] in epoch_of(loader)) == [3, 4]


def test_u33_a_state_that_is_loaded_after_iterating_has_begun_counts_for_the_next_iteration():
    arguments = {"batch_size": 2, "max_tokens": 16, "exchange": True}
    loader = DataLoader(Stateful([3] * 10), **arguments)
    whole = epoch_of(DataLoader(Stateful([3] * 10), **arguments))
    batches = iter(loader)
    first = list(itertools.islice(batches, 2))
    state = loader.state_dict()
    list(itertools.islice(batches, 2))
    loader.load_state_dict(state)
    with pytest.raises(RuntimeError, match="a state was loaded after this iteration had begun"):
        next(batches)
    assert contents([first, *epoch_of(loader)]) == contents([[*whole[0], *whole[1]], *whole[2:]])


class Alive(Stateful):
    """Gives its own dictionary away instead of a copy, and changes it as it goes on."""

    def __init__(self, lengths):
        super().__init__(lengths)
        self.state = {"at": 0}

    def __iter__(self):
        while self.state["at"] < len(self.lengths):
            self.state["at"] += 1
            yield self.sample(self.state["at"] - 1)
        self.state["at"] = 0

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


@pytest.mark.parametrize("exchange", [False, True])
def test_a_state_does_not_follow_the_stream_as_it_goes_on(exchange):
    arguments = {"batch_size": 2, "max_tokens": 16, "exchange": exchange}
    loader = DataLoader(Alive([3] * 10), **arguments)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = contents([list(batches)])
    for _ in range(2):  # nor is it used up by being loaded
        other = DataLoader(Alive([3] * 10), **arguments)
        other.load_state_dict(state)
        assert contents([list(other)]) == rest


@pytest.mark.parametrize("exchange", [False, True])
def test_u59_a_sample_that_truncation_robs_of_its_labels_is_left_out_and_told(exchange, caplog):
    class Answers(Stream):
        def sample(self, row):
            tokens = np.arange(self.lengths[row])
            behind = tokens.size if row == 3 else 8  # nothing to lose where there is no label at all
            return {"input_ids": tokens, "labels": np.where(tokens < behind, -100, tokens)}

    loader = DataLoader(
        Answers([12, 20, 30, 20]), max_tokens=16, oversize="truncate", exchange=exchange, batch_size=2
    )
    assert sum(len(batch.sample_ids) for batch in loader) == 4
    loader = DataLoader(Answers([12, 20, 30, 20]), max_tokens=8, oversize="truncate", exchange=exchange)
    rows = sorted(int(row) for batch in loader for row in batch.sample_ids[:, 1])
    assert rows == [3]
    report = loader.metrics()
    assert (report["kept"], report["truncated"], report["unlabelled"]) == (1, 1, 3)
    assert report["cut_tokens"] == 12 + 20 + 30 + 20 - 8
    assert caplog.text.count("all its labels behind the cut") == 1


def test_a_state_of_the_first_version_is_read():
    arguments = {"batch_size": 2, "window": 2, "max_tokens": 16}
    loader = DataLoader(Stateful([3] * 10), **arguments)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = contents([list(batches)])
    old = {name: value for name, value in state.items() if name not in ("skip", "taken")} | {"version": 1}
    other = DataLoader(Stateful([3] * 10), **arguments)
    other.load_state_dict(old)
    assert contents([list(other)]) == rest
    for wrong, what in (({"version": 9}, "version 9, this code reads 1..2"), ({"kind": "x"}, "not a state")):
        with pytest.raises(ValueError, match=what):
            other.load_state_dict(state | wrong)


def test_batches_of_exchanged_streams_are_padded_and_collated_as_others():
    arguments = {"batch_size": 4, "max_tokens": 16, "exchange": True}
    padded = DataLoader(Stream([3] * 10), pad_to=(8, 16), **arguments)
    assert [batch["input_ids"].shape[1] for batch in padded] == [16, 16, 8]
    collated = DataLoader(
        Stream([3] * 10), collate_fn=lambda samples: {"keys": [one["key"] for one in samples]}, **arguments
    )
    keys = [key for batch in collated for key in batch["keys"]]
    assert sorted(keys) == sorted(f"sample {row}" for row in range(10))


@settings(max_examples=40)
@given(
    per_rank=st.lists(st.lists(st.integers(1, 40), max_size=12), min_size=2, max_size=5),
    seed=st.integers(0, 99),
)
def test_every_rank_is_sent_what_its_micro_batches_hold_and_nothing_else(per_rank, seed):
    """The moves of a step, for all ranks in one process, against the plan read sample by sample."""
    ranks = len(per_rank)
    rows = [(rank, row, n) for rank, lengths in enumerate(per_rank) for row, n in enumerate(lengths)]
    rows = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]
    lengths = np.array([n for _, _, n in rows], np.int64)
    table = replace(
        SampleTable.from_lengths(lengths),
        source=np.array([rank for rank, _, _ in rows], np.int32),
        row=np.array([row for _, row, _ in rows], np.int64),
    )
    cost = CostModel(linear=1e-6, quadratic=1e-8, fixed=1e-5)
    plan = plan_step(table, topology=Topology(ranks=ranks), max_tokens=40, cost=cost, cp_degrees=(1, 2))
    for sender in range(ranks):
        expected = {}
        for target in range(ranks):
            for m in plan.for_rank(target):
                for at in plan.micro_batches.samples(int(m)):
                    if table.source[at] == sender:
                        expected.setdefault(target, set()).add(int(table.row[at]))
        assert {one: set(sent) for one, sent in wanted_of(plan, table, sender).items()} == expected


def test_samples_survive_being_sent():
    held = Held("streams")
    for row, tokens in enumerate(([1, 2, 3], [1 << 40], [7, 8])):
        held.held[row] = Rows(
            input_ids=np.array(tokens),
            offsets=np.array([0, len(tokens)]),
            labels=np.array([-100, *tokens[1:]]) if row != 1 else None,
            columns={"key": [f"row {row}"]} | ({"more": [{"x": row}]} if row else {}),
        )
    arrived = unpacked(packed(held, [2, 0, 1]))
    assert list(arrived) == [2, 0, 1]
    for row, rows in arrived.items():
        sent = held.held[row]
        assert rows.input_ids.tolist() == sent.input_ids.tolist()
        labels = sent.input_ids if sent.labels is None else sent.labels
        assert rows.labels.tolist() == labels.tolist()
        assert {**{"more": [None]}, **sent.columns} == rows.columns
    assert unpacked(packed(held, [])) == {}
    held.held[0] = replace(held.held[0], input_ids=np.arange(1000), labels=None, offsets=np.array([0, 1000]))
    assert len(packed(held, [0])) < 5 * 1000  # token ids travel in 32 bits where they fit


def test_slots_and_their_samples_are_counted_with_exchange_only():
    counted = {"micro_batches": 3, "max_samples": 2, "batch_size": 4, "max_tokens": 16}
    for step in epoch_of(DataLoader(Stream([3] * 10), exchange=True, **counted)):
        assert [batch.slot for batch in step] == [0, 1, 2]
        assert max(len(batch.sample_ids) for batch in step) <= 2
    even = {"slots_multiple_of": 2, "sync": "micro_batch", "pad_to": "slot", "max_tokens": 16}
    for step in epoch_of(DataLoader(Stream([9] * 3), exchange=True, batch_size=3, **even)):
        assert len(step) == 4
    for name, value in (("micro_batches", 3), ("max_samples", 2), ("slots_multiple_of", 2)):
        with pytest.raises(ValueError, match=f"{name} cannot be used over an IterableDataset"):
            DataLoader(Stream([3]), max_tokens=16, **{name: value})
