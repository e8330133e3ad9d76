"""Exchange over streams of `datasets`, under a device mesh, and with more workers than samples."""

from __future__ import annotations

import itertools
import logging
import pickle

import datasets
import pytest
from datasets.distributed import split_dataset_by_node
from torch.distributed.device_mesh import init_device_mesh

from loaders import DataLoader
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


def _with_tensor_parallel_peers(rank):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    stream = Stateful([4, 9, 2, 30, 8] if rank < 2 else [7] * 9)  # peers have the same stream
    loader = DataLoader(
        stream, global_batch_size=3, max_tokens=16, cp_degrees=(1, 2), exchange=True, device_mesh=mesh
    )
    return [
        (batch.step, batch.sample_ids.tolist(), batch["input_ids"].tolist(), batch.num_ranks)
        for batch in loader
    ]


def test_u22_tensor_parallel_peers_get_the_same_batches_of_their_data_ranks_streams():
    heard = run_ranks(_with_tensor_parallel_peers, 4)
    assert heard[0] == heard[1]
    assert heard[2] == heard[3]
    samples = {tuple(pair) for told in (heard[0], heard[2]) for batch in told for pair in batch[1]}
    assert samples == {(0, row) for row in range(5)} | {(1, row) for row in range(9)}
    assert {batch[3] for told in heard for batch in told} == {2}
    assert heard[0][-1][0] == heard[2][-1][0] == 4


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
    assert contents([first, *epoch_of(loader)]) == contents([[*whole[0], *whole[1]], *whole[2:]])
