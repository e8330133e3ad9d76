"""Streams of `datasets` in the loader's balanced mode: nothing lost, and exact states."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import islice
from typing import Any

import datasets
import pytest

from loaders import DataLoader, Mixture, open_source
from loaders.sources.streams import keeps_exact_state

NUM_ROWS = 37


def plain() -> Any:
    rows = datasets.Dataset.from_dict({"input_ids": [[row] * (1 + row % 5) for row in range(NUM_ROWS)]})
    return rows.to_iterable_dataset(num_shards=4)


STREAMS: dict[str, Callable[[], Any]] = {
    "plain": plain,
    "mapped": lambda: plain().map(lambda sample: {"input_ids": sample["input_ids"]}),
    "buffered": lambda: plain().shuffle(seed=1, buffer_size=10),
    "buffered and mapped": lambda: plain().shuffle(seed=1, buffer_size=10).map(lambda sample: sample),
    "interleaved": lambda: datasets.interleave_datasets([plain(), plain().shuffle(seed=2, buffer_size=5)]),
}


def loader(name: str) -> DataLoader[Any]:
    return DataLoader(STREAMS[name](), batch_size=4, max_tokens=64, window=2)


def rows_of(batches: Any) -> list[list[int]]:
    return [sorted(set(batch["input_ids"][0].tolist())) for batch in batches]


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_a_stream_of_datasets_resumes_behind_every_step_without_losing_a_sample(name: str) -> None:
    whole = rows_of(loader(name))
    if name != "interleaved":
        assert sorted(row for step in whole for row in step) == list(range(NUM_ROWS))
    for done in range(len(whole)):
        first = loader(name)
        for _ in islice(first, done):
            pass
        second = loader(name)
        second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
        assert rows_of(second) == whole[done:]


@pytest.mark.parametrize("name", ["plain", "buffered"])
def test_every_epoch_of_a_stream_has_every_sample(name: str) -> None:
    made = loader(name)
    for _ in range(3):
        assert sorted(row for step in rows_of(made) for row in step) == list(range(NUM_ROWS))


def test_only_a_state_that_brings_back_every_sample_is_used_instead_of_reading_again() -> None:
    kept = {name: keeps_exact_state(make()) for name, make in STREAMS.items()}
    assert kept == {
        "plain": True,
        "mapped": True,
        "buffered": False,
        "buffered and mapped": False,
        "interleaved": False,
    }
    assert not keeps_exact_state(object())


def test_a_stream_as_a_source_is_refused_with_what_to_do_instead() -> None:
    for make in (open_source, lambda stream: Mixture({"web": stream})):
        with pytest.raises(TypeError, match=r"rows by number, and IterableDataset is a stream.*Pass it to"):
            make(plain())
