"""The laws of the balanced mode over streams: nothing lost, no cap exceeded, exact state, ranks aligned."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer import Topology
from loaders import DataLoader
from loaders.faults import SampleError
from loaders.quarantine import TooManyRejects
from tests.loaders.arrays import epoch_of
from tests.loaders.streams import Endless, Stateful, Stream, contents
from tests.support.ranks import run_ranks

CAP = 32


lengths = st.lists(st.integers(0, 50), max_size=40)


@settings(max_examples=80)
@given(
    lengths=lengths,
    batch_size=st.integers(1, 5),
    window=st.integers(1, 5),
    oversize=st.sampled_from(["drop", "truncate", "split"]),
    drop_last=st.booleans(),
    masked=st.booleans(),
)
def test_every_sample_once_no_cap_exceeded_and_as_many_steps_as_without_a_window(
    lengths, batch_size, window, oversize, drop_last, masked
):
    kept = [row for row, n in enumerate(lengths) if n and not (oversize == "drop" and n > CAP)]
    loader = DataLoader(
        Stream(lengths, masked),
        batch_size=batch_size,
        window=window,
        max_tokens=CAP,
        oversize=oversize,
        drop_last=drop_last,
    )
    steps = epoch_of(loader)
    wanted = kept[: len(kept) // batch_size * batch_size] if drop_last else kept
    assert len(steps) == -(-len(wanted) // batch_size)
    seen, step_of_row, tokens_of_row = [], {}, {}
    for number, step in enumerate(steps):
        assert len({batch.step for batch in step} | {number}) == 1
        assert step[0].step_samples == sum(
            bool((labels != -100).any())
            for batch in step
            for labels in batch["shift_labels"][0].split(batch.seq_lengths.tolist())
        )
        assert step[0].step_loss_tokens == sum(int((batch["shift_labels"] != -100).sum()) for batch in step)
        for batch in step:
            assert 1 <= batch["input_ids"].shape[1] <= CAP
            assert batch.num_loss_tokens == int((batch["labels"] != -100).sum())
            bounds = batch["cu_seq_lens_q"].tolist()
            ids, starts = batch.sample_ids.tolist(), batch.starts.tolist()
            for (_, row), start, a, b in zip(ids, starts, bounds[:-1], bounds[1:], strict=True):
                tokens = [1000 * row + t for t in range(start, min(lengths[row], start + CAP))]
                assert batch["input_ids"][0, a:b].tolist() == tokens
                if oversize == "split":
                    step_of_row.setdefault(row, number)
                    assert step_of_row[row] == number  # pieces stay together
                tokens_of_row[row] = tokens_of_row.get(row, 0) + b - a
                if start == 0:
                    seen.append(row)
            assert batch.columns["key"] == [f"sample {row}" for _, row in batch.sample_ids.tolist()]
    assert sorted(seen) == wanted
    most = sum(lengths) if oversize == "split" else CAP
    assert tokens_of_row == {row: min(lengths[row], most) for row in wanted}
    for first in range(0, len(steps), window):  # no sample leaves its window
        held = [
            int(row)
            for step in steps[first : first + window]
            for batch in step
            for row in batch.sample_ids[batch.starts == 0, 1]
        ]
        assert sorted(held) == wanted[first * batch_size : (first + window) * batch_size]
    report = loader.metrics()
    assert report["kept"] == len(kept)
    assert report["empty"] == lengths.count(0)
    assert report["dropped"] + report["truncated"] + report["split"] == sum(n > CAP for n in lengths)


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, CAP), min_size=1, max_size=40),
    batch_size=st.integers(1, 4),
    window=st.integers(1, 4),
    stop=st.integers(0, 40),
    kind=st.sampled_from([Stream, Stateful]),
    same=st.booleans(),
)
def test_first_steps_and_resumed_rest_are_the_whole(lengths, batch_size, window, stop, kind, same):
    arguments = {"batch_size": batch_size, "window": window, "max_tokens": CAP}
    whole = [batch for step in epoch_of(DataLoader(kind(lengths), **arguments)) for batch in step]
    loader = DataLoader(kind(lengths), **arguments)
    first = list(itertools.islice(iter(loader), min(stop, len(whole))))
    state = loader.state_dict()
    done = 1 + max((batch.step for batch in first if batch.last_in_step), default=-1)
    other = loader if same else DataLoader(kind(lengths), **arguments)
    before = other.dataset.reads
    other.load_state_dict(state)
    rest = list(other)
    assert contents([rest]) == contents([[batch for batch in whole if batch.step >= done]])
    if kind is Stateful:  # nothing before the window is read again
        assert other.dataset.reads - before == len(lengths) - state["drawn"]


def test_an_endless_stream_is_read_a_window_at_a_time():
    loader = DataLoader(Endless(), batch_size=8, window=4, max_tokens=64)
    batches = list(itertools.islice(loader, 200))
    assert batches[-1].step > 20
    state = loader.state_dict()
    assert state["drawn"] <= 8 * (batches[-1].step + 4)
    with pytest.raises(TypeError, match="has no len"):
        len(loader)


def test_steps_of_a_window_take_nearly_equal_time():
    rng = np.random.default_rng(3)
    stream = Stream(np.minimum(rng.lognormal(3, 1, 512).astype(int) + 1, 256).tolist())

    def spread(window):
        loader = DataLoader(stream, batch_size=16, window=window, max_tokens=256)
        tokens = [sum(int(batch.seq_lengths.sum()) for batch in step) for step in epoch_of(loader)]
        return max(tokens) / np.mean(tokens)

    assert spread(8) < 1 + (spread(1) - 1) / 2


def test_epochs_follow_each_other_and_steps_go_on():
    loader = DataLoader(Stream([3, 4, 5]), batch_size=2, max_tokens=16)
    assert [[batch.step for batch in loader] for _ in range(2)] == [[0, 1], [2, 3]]
    assert loader.state_dict()["epoch"] == 2


def test_workers_read_the_stream():
    loader = DataLoader(Stream([3] * 20), batch_size=4, max_tokens=16, num_workers=2)
    rows = sorted(int(tokens) // 1000 for batch in loader for tokens in batch["input_ids"][0, ::3])
    assert rows == list(range(20))


def test_samples_that_cannot_be_used_are_named_or_skipped_under_a_budget(tmp_path):
    class Bad(Stream):
        def sample(self, row):
            return {"input_ids": [1.5]} if row in (2, 5) else super().sample(row)

    with pytest.raises(ValueError, match=r"Bad, sample 2: tokens must be a list of integers"):
        list(DataLoader(Bad([3] * 8), max_tokens=16))
    arguments = {"batch_size": 2, "max_tokens": 16, "on_error": "skip"}
    loader = DataLoader(Bad([3] * 8), max_errors=2, quarantine=tmp_path / "q.jsonl", **arguments)
    assert [len(step) for step in epoch_of(loader)] == [1, 1, 1]
    assert loader.metrics()["skipped"] == len((tmp_path / "q.jsonl").read_text().splitlines()) == 2
    with pytest.raises(TooManyRejects, match="max_errors=1"):
        list(DataLoader(Bad([3] * 8), max_errors=1, **arguments))


def test_an_error_of_the_stream_names_the_sample():
    class Broken(Stream):
        def sample(self, row):
            if row == 3:
                raise KeyError("text")
            return super().sample(row)

    with pytest.raises(SampleError, match=r"Broken, sample 3, stage stream: KeyError: 'text'"):
        list(DataLoader(Broken([3] * 8), max_tokens=16))


def test_what_a_stream_cannot_do_is_said():
    stream = Stream([3, 40])
    for arguments, match in (
        ({"step_tokens": 8}, "step_tokens over an IterableDataset needs exchange=True"),
        ({"length": [3, 40]}, "length must name an entry of a stream's samples"),
        ({"engine": "ray"}, "engine cannot be used over an IterableDataset"),
        ({"fill_media": True}, "fill_media cannot be used over an IterableDataset"),
        ({"global_batch_size": 3, "topology": Topology(ranks=2), "rank": 0}, "must be a multiple of the 2"),
        (
            {"cp_degrees": (1, 2), "topology": Topology(ranks=2), "rank": 0},
            "cp_degrees=.*needs exchange=True",
        ),
    ):
        with pytest.raises(ValueError, match=match):
            DataLoader(stream, max_tokens=8, **arguments)
    with pytest.raises(ValueError, match="sample 1 has 40 tokens; a sample may have at most 8"):
        list(DataLoader(stream, max_tokens=8))
    with pytest.raises(RuntimeError, match="must agree on each step"):
        next(iter(DataLoader(stream, max_tokens=64, topology=Topology(ranks=2), rank=0)))
    with pytest.raises(ValueError, match="window only has an effect on an IterableDataset"):
        DataLoader([[1, 2]], max_tokens=8, window=2)
    state = DataLoader(stream, max_tokens=64, exchange=False).state_dict()
    with pytest.raises(ValueError, match="window was 4, is 2"):
        DataLoader(stream, max_tokens=64, window=2).load_state_dict(state)


def _on_a_real_rank(rank, sync, drop_last):
    rng = np.random.default_rng(rank)
    stream = Stateful(rng.integers(1, CAP, size=(30, 17)[rank]).tolist(), masked=True)
    arguments = {"batch_size": 4, "window": 3, "max_tokens": CAP, "sync": sync, "drop_last": drop_last}
    loader = DataLoader(stream, **arguments)
    told, half = [], None
    for batch in loader:
        rows = batch.sample_ids[:, 1].tolist()
        told.append(
            (batch.step, batch.slot, batch.last_in_step, rows, batch.num_loss_tokens, batch.step_loss_tokens)
        )
        if batch.last_in_step and batch.step == 2:
            half = loader.state_dict()
    other = DataLoader(stream, **arguments)
    other.load_state_dict(half)
    rest = [(batch.step, batch.sample_ids[:, 1].tolist()) for batch in other]
    return told, rest, loader.metrics()["imbalance"]


SETTINGS = (("step", False), ("micro_batch", False), ("step", True))


def _in_all_settings(rank):
    return {setting: _on_a_real_rank(rank, *setting) for setting in SETTINGS}


@pytest.fixture(scope="module")
def real_ranks():
    return run_ranks(_in_all_settings, 2)


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
def test_real_ranks_with_streams_of_their_own_stay_aligned_to_the_end_of_the_longest(real_ranks, sync):
    ranks = [heard[sync, False] for heard in real_ranks]
    for size, (told, rest, imbalance) in zip((30, 17), ranks, strict=True):
        assert sorted(row for batch in told for row in batch[3]) == list(range(size))
        assert {batch[0] for batch in told} == set(range(8))
        assert rest == [(batch[0], batch[3]) for batch in told if batch[0] > 2]
        assert imbalance == ranks[0][2] > 1.0
    for step in range(8):
        of_step = [[batch for batch in told if batch[0] == step] for told, _, _ in ranks]
        assert {batch[5] for of_rank in of_step for batch in of_rank} == {
            sum(batch[4] for one in of_step for batch in one)
        }
        for of_rank in of_step:
            assert [batch[1] for batch in of_rank] == list(range(len(of_rank)))
            assert [batch[2] for batch in of_rank] == [False] * (len(of_rank) - 1) + [True]
        if sync == "micro_batch":
            assert len(of_step[0]) == len(of_step[1])


def test_drop_last_ends_with_the_first_stream_that_does(real_ranks):
    for heard in real_ranks:
        told, _, _ = heard["step", True]
        assert {batch[0] for batch in told} == set(range(4))
