"""Batches that a cluster makes are those that this process makes."""

from __future__ import annotations

import threading

import pytest
import torch

pytest.importorskip("ray", reason="ray is not installed")

from loaders import DataLoader, Mixture, open_source
from tests.loaders.arrays import ArraySource
from tests.media.test_loader import album, plain
from tests.ray.streams import OPTIONS, check_equal, loader_of, mixture


def on_ray(address, dataset, rank, ranks=2, **changes):
    return loader_of(dataset, rank, ranks, engine="ray", address=address, **changes)


@pytest.fixture(scope="module")
def local():
    """Two epochs of both ranks, in this process."""
    loaders = [loader_of(mixture(), rank) for rank in range(2)]
    return [[list(loader) for _ in range(2)] for loader in loaders]


def test_two_epochs_of_a_mixture_with_shared_micro_batches_and_bad_samples(address, local):
    for rank in range(2):
        loader = on_ray(address, mixture(), rank)
        for epoch in range(2):
            check_equal(local[rank][epoch], list(loader))
        assert loader.metrics()["skipped"] > 0
    assert any(batch.cp_degree == 2 for batch in local[0][0])


def test_a_local_state_goes_on_on_a_cluster_and_back(address, local):
    batches = local[1][0]
    for engines in (("local", "ray"), ("ray", "local")):
        first, second = (
            loader_of(mixture(), 1, engine=engine, address=address if engine == "ray" else None)
            for engine in engines
        )
        given = iter(first)
        taken = [next(given) for _ in range(11)]
        done = sum(batch.last_in_step for batch in taken)
        second.load_state_dict(first.state_dict())
        check_equal([batch for batch in batches if batch.step >= done], list(second))


def test_three_ranks_go_on_where_two_stopped(address):
    changes = {"global_batch_size": 16, "batch_size": None}
    two = on_ray(address, mixture(), 0, 2, **changes)
    given = iter(two)
    while two.state_dict()["step"] < 3:
        next(given)
    for rank in range(3):
        state = two.state_dict()
        here = loader_of(mixture(), rank, 3, **changes)
        there = on_ray(address, mixture(), rank, 3, **changes)
        here.load_state_dict(state)
        there.load_state_dict(state)
        check_equal(list(here), list(there))


def stacked(samples):
    """A user's own function, which writes into what it is given."""
    for sample in samples:
        sample["input_ids"] += 1
    return {
        "input_ids": torch.cat([sample["input_ids"] for sample in samples]),
        "rows": [int(sample["row"]) if sample.get("row") is not None else -1 for sample in samples],
    }


def test_a_users_collate_function_runs_in_the_builder(address):
    changes = {"collate_fn": stacked, "cp_degrees": (1,)}
    here, there = loader_of(mixture(), 0, **changes), on_ray(address, mixture(), 0, **changes)
    check_equal(list(here), list(there))


def test_batches_may_be_written_into(address):
    for batch in on_ray(address, mixture(), 0):
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                value.zero_()


def test_files_of_tokens(address, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [list(range(1, 2 + at % 50)) for at in range(200)]
    table = pa.table({"input_ids": rows, "name": [f"row {at}" for at in range(200)]})
    pq.write_table(table, tmp_path / "tokens.parquet", row_group_size=32)
    source = open_source(str(tmp_path / "tokens.parquet"))
    check_equal(list(loader_of(source, 1)), list(on_ray(address, source, 1)))


def test_samples_that_begin_and_end_with_tokens(address):
    changes = {"bos": 60001, "eos": 60002}
    check_equal(list(loader_of(mixture(), 1, **changes)), list(on_ray(address, mixture(), 1, **changes)))


def test_pictures_and_sound_with_fillers(address):
    pytest.importorskip("PIL", reason="Pillow is not installed")
    pytest.importorskip("soundfile", reason="soundfile is not installed")
    data = {"media": album(16, videos=0.0), "text": plain()}
    changes = {"max_tokens": 256, "sync": "micro_batch", "oversize": "drop"}
    for rank in range(2):
        here = loader_of(Mixture(data), rank, **changes)
        there = on_ray(address, Mixture(data), rank, **changes)
        check_equal(list(here), list(there))
    assert any(name.startswith("pixel") for batch in here for name in batch)


def test_errors_of_the_data_come_as_they_are(address):
    changes = {"on_error": "raise", "max_errors": 0.01}
    with pytest.raises(KeyError, match=r"brittle, row \d+, stage read: KeyError: 'missing entry'"):
        list(on_ray(address, mixture(), 0, **changes))
    with pytest.raises(ValueError, match="too long"):
        on_ray(address, mixture(), 0, oversize="error", cp_degrees=(1,))


def test_data_that_cannot_be_sent_are_refused(address):
    source = ArraySource([5] * 8)
    source.lock = threading.Lock()
    with pytest.raises(TypeError, match="must be picklable"):
        on_ray(address, source, 0)


def test_what_has_no_effect_is_refused():
    with pytest.raises(ValueError, match="address"):
        DataLoader(mixture(), **OPTIONS | {"cp_degrees": (1,)}, address="127.0.0.1:1")
