"""The laws of the balanced mode, played on all ranks in one process."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import get_worker_info

from loaders import DataLoader
from tests.loaders.arrays import ArraySource, MaskedSource, epoch_of, ids_of, merged, on_all_ranks

lengths = st.lists(st.integers(0, 90), min_size=1, max_size=50).filter(any)
CAP = 64


@settings(max_examples=80)
@given(
    lengths=lengths,
    ranks=st.integers(1, 5),
    batch_size=st.integers(1, 4),
    shuffle=st.booleans(),
    sync=st.sampled_from(["step", "micro_batch"]),
    oversize=st.sampled_from(["drop", "truncate", "split"]),
    drop_last=st.booleans(),
)
def test_every_sample_once_no_cap_exceeded_and_equal_steps_on_all_ranks(
    lengths, ranks, batch_size, shuffle, sync, oversize, drop_last
):
    source = ArraySource(lengths)
    expected = [row for row, n in enumerate(lengths) if n and not (oversize == "drop" and n > CAP)]
    arguments = {
        "batch_size": batch_size,
        "shuffle": shuffle,
        "max_tokens": CAP,
        "sync": sync,
        "oversize": oversize,
    }
    if not expected:
        with pytest.raises(ValueError, match="no sample to give out"):
            DataLoader(source, **arguments)
        return
    loaders = on_all_ranks(source, ranks, drop_last=drop_last, **arguments)
    together = merged([epoch_of(loader) for loader in loaders])
    assert all(len(loader) == len(together) for loader in loaders)
    seen = [row for step in ids_of(together) for _, row in step]
    if drop_last:
        assert len(seen) == len(expected) // (batch_size * ranks) * batch_size * ranks
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(expected)
    else:
        assert sorted(seen) == expected
    for step in together:
        tokens = {}
        for batch in step:
            assert batch["input_ids"].shape[1] <= CAP
            assert batch.step_loss_tokens == sum(other.num_loss_tokens for other in step)
            assert batch.num_loss_tokens == int((batch["shift_labels"] != -100).sum())
            if not len(batch.sample_ids):
                continue
            offsets = np.cumsum(np.r_[0, batch.seq_lengths])
            for (_, row), start, a, b in zip(
                batch.sample_ids, batch.starts, offsets[:-1], offsets[1:], strict=True
            ):
                tokens.setdefault(int(row), {})[int(start)] = batch["input_ids"][0, a:b].numpy()
        for row, pieces in tokens.items():
            whole = np.concatenate([pieces[start] for start in sorted(pieces)])
            wanted = source.tokens(row)[:CAP] if oversize == "truncate" else source.tokens(row)
            np.testing.assert_array_equal(whole, wanted)
    if sync == "micro_batch":
        for number, step in enumerate(together):
            slots = {}
            for batch in step:
                slots.setdefault(batch.slot, []).append(batch)
            assert all(len(batches) == ranks for batches in slots.values()), f"step {number}"


@pytest.mark.parametrize("num_samples", [1, 2, 3, 7, 9, 17])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_fewer_samples_than_ranks_and_awkward_counts_end_on_all_ranks(num_samples, ranks):
    loaders = on_all_ranks(ArraySource([5] * num_samples), ranks, batch_size=2, max_tokens=16)
    together = merged([epoch_of(loader) for loader in loaders])
    assert sum(len(step) for step in ids_of(together)) == num_samples
    assert {len(step) >= ranks for step in together} == {True}


def test_an_idle_rank_gets_one_dummy_token_that_trains_nothing():
    for loader in on_all_ranks(ArraySource([7]), 3, batch_size=1, max_tokens=8):
        [[batch]] = epoch_of(loader)
        if len(batch.sample_ids):
            continue
        assert batch.last_in_step
        assert batch.num_loss_tokens == 0
        assert batch.step_loss_tokens == 6
        assert batch.sample_ids.shape == (0, 2)
        assert batch.sample_ids.dtype == np.int64
        assert batch["input_ids"].shape == (1, 1)
        assert batch["labels"].tolist() == [[-100]]
        assert batch["cu_seq_lens_q"].tolist() == [0, 1]
        assert batch["max_length_q"] == 1
        break
    else:
        pytest.fail("no rank was idle")


def sequence(loader):
    return [
        (batch.step, batch.slot, batch.sample_ids.tolist(), batch["input_ids"].tolist()) for batch in loader
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resume_after_any_number_of_batches_continues_exactly(num_workers):
    source = ArraySource(np.random.default_rng(1).integers(1, 80, 60))
    arguments = {"batch_size": 3, "shuffle": True, "max_tokens": 64, "oversize": "split", "seed": 5}
    whole = sequence(on_all_ranks(source, 2, **arguments)[1])
    starts = [0, *range(1, len(whole) + 1)] if num_workers == 0 else [0, 4, len(whole) - 1, len(whole)]
    for k in starts:
        loader = on_all_ranks(source, 2, **arguments)[1]
        batches = iter(loader)
        first = [next(batches) for _ in range(k)]
        state = loader.state_dict()
        finished = sum(batch.last_in_step for batch in first)
        fresh = on_all_ranks(source, 2, num_workers=num_workers, **arguments)[1]
        fresh.load_state_dict(state)
        assert sequence(fresh) == [batch for batch in whole if batch[0] >= finished], f"after {k} batches"


@settings(max_examples=25)
@given(
    before=st.integers(1, 4),
    after=st.integers(1, 5),
    steps=st.integers(0, 7),
    then=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_steps_stay_the_same_when_the_number_of_ranks_changes(before, after, steps, then, seed):
    source = ArraySource(np.random.default_rng(seed).integers(1, 60, 50))
    arguments = {"shuffle": True, "max_tokens": 64, "seed": seed, "global_batch_size": 7}
    whole = ids_of(merged([epoch_of(loader) for loader in on_all_ranks(source, 1, **arguments)]))
    states = []
    for loader in on_all_ranks(source, before, **arguments):
        batches = iter(loader)
        for _ in range(steps):
            while not next(batches).last_in_step:
                pass
        states.append(loader.state_dict())
    assert all(state == states[0] for state in states), "the state must be equal on all ranks"
    resumed = on_all_ranks(source, after, **arguments)
    for loader in resumed:
        loader.load_state_dict(states[0])
    assert ids_of(merged([epoch_of(loader) for loader in resumed])) == whole[steps:]


def test_with_batch_size_the_remaining_samples_are_the_same_on_another_number_of_ranks():
    """96 samples, 4 ranks; 40 are used; the other 56 come once each on 2, 1, 8 and 3 ranks."""
    source = ArraySource([8] * 96)
    loaders = on_all_ranks(source, 4, batch_size=1, shuffle=True, max_tokens=32)
    batches = iter(loaders[0])
    for _ in range(10):
        while not next(batches).last_in_step:
            pass
    state = loaders[0].state_dict()
    whole = ids_of(
        merged(
            [
                epoch_of(loader)
                for loader in on_all_ranks(source, 1, batch_size=1, shuffle=True, max_tokens=32)
            ]
        )
    )
    order = [step[0] for step in whole]
    for ranks in (2, 1, 8, 3):
        resumed = on_all_ranks(source, ranks, batch_size=1, shuffle=True, max_tokens=32)
        for loader in resumed:
            loader.load_state_dict(state)
        rest = ids_of(merged([epoch_of(loader) for loader in resumed]))
        assert [len(step) for step in rest][:-1] == [ranks] * (len(rest) - 1)
        expected = [sorted(order[at : at + ranks]) for at in range(40, 96, ranks)]
        assert rest == expected


def test_the_sequence_is_the_same_for_any_number_of_workers():
    source = MaskedSource(np.random.default_rng(2).integers(1, 90, 40))
    arguments = {"batch_size": 4, "shuffle": True, "max_tokens": 64, "oversize": "split"}
    plain = sequence(DataLoader(source, **arguments))
    for num_workers in (1, 2):
        assert sequence(DataLoader(source, num_workers=num_workers, **arguments)) == plain


def test_epochs_differ_when_shuffled_and_steps_go_on_counting():
    loader = DataLoader(ArraySource(range(1, 41)), batch_size=8, shuffle=True, max_tokens=64)
    first, second = epoch_of(loader), epoch_of(loader)
    assert [step[0].step for step in first + second] == list(range(10))
    assert sorted(chain(*ids_of(first))) == sorted(chain(*ids_of(second)))
    assert ids_of(first) != ids_of(second)
    loader.set_epoch(0)
    assert ids_of(epoch_of(loader)) == ids_of(first)
    plain = DataLoader(ArraySource(range(1, 41)), batch_size=8, max_tokens=64)
    assert ids_of(epoch_of(plain)) == ids_of(epoch_of(plain))


def test_state_at_the_end_of_an_epoch_resumes_behind_it():
    source = ArraySource(range(1, 41))

    def make():
        return DataLoader(source, batch_size=8, shuffle=True, max_tokens=64)

    reference = make()
    epochs = [sequence(reference) for _ in range(3)]
    loader = make()
    batches = iter(loader)
    for _ in epochs[0]:
        next(batches)
    before_the_end_is_seen = loader.state_dict()
    assert next(batches, None) is None
    after = loader.state_dict()
    resumed = make()
    resumed.load_state_dict(before_the_end_is_seen)
    assert [sequence(resumed), sequence(resumed)] == [[], epochs[1]]
    resumed.load_state_dict(after)
    resumed.set_epoch(1)  # as a training loop does; the loaded place is kept
    assert [sequence(resumed), sequence(resumed)] == epochs[1:]


def test_set_epoch_keeps_a_state_loaded_in_that_epoch_and_leaves_it_for_another():
    source = ArraySource(range(1, 41))
    reference = DataLoader(source, batch_size=8, shuffle=True, max_tokens=64)
    whole = [ids_of(epoch_of(reference)) for _ in range(2)]
    loader = DataLoader(source, batch_size=8, shuffle=True, max_tokens=64)
    batches = iter(loader)
    while not next(batches).last_in_step:
        pass
    state = loader.state_dict()
    loader.load_state_dict(state)
    loader.set_epoch(0)
    assert ids_of(epoch_of(loader)) == whole[0][1:]
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert ids_of(epoch_of(loader)) == whole[1]


@settings(max_examples=30)
@given(lengths=lengths, step_tokens=st.integers(1, 200), ranks=st.integers(1, 3), drop_last=st.booleans())
def test_steps_of_so_many_tokens_end_with_the_sample_that_reaches_them(
    lengths, step_tokens, ranks, drop_last
):
    source = ArraySource(lengths)
    loaders = on_all_ranks(source, ranks, step_tokens=step_tokens, max_tokens=128, drop_last=drop_last)
    steps = ids_of(merged([epoch_of(loader) for loader in loaders]))
    expected, held = [[]], 0
    for row, n in enumerate(lengths):
        if n:
            expected[-1].append((0, row))
            held += n
            if held >= step_tokens:
                expected.append([])
                held = 0
    if not expected[-1] or drop_last:
        expected.pop()
    assert steps == expected
    assert len(loaders[0]) == len(expected)


def test_step_tokens_may_follow_the_step():
    loader = DataLoader(ArraySource([10] * 30), step_tokens=lambda step: 10 * (step + 1), max_tokens=128)
    assert [len(step) for step in ids_of(epoch_of(loader))] == [1, 2, 3, 4, 5, 6, 7, 2]


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4},
        {"num_workers": 1, "pin_memory": True},
        {"pin_memory": True},
        pytest.param({"num_workers": 1, "multiprocessing_context": "spawn"}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
def test_torchs_arguments_for_workers_change_nothing_over_epochs(arguments):
    source = ArraySource(np.random.default_rng(3).integers(1, 60, 30))
    common = {"batch_size": 4, "shuffle": True, "max_tokens": 64}
    plain, other = DataLoader(source, **common), DataLoader(source, **common, **arguments)
    for _ in range(2):
        assert sequence(other) == sequence(plain)
    batches = iter(other)
    next(batches)  # left in the middle
    del batches
    next(iter(plain))
    assert sequence(other) == sequence(plain)


GREETED = []


def test_user_code_in_workers_sees_torchs_worker_info():
    arguments = {"num_workers": 2, "collate_fn": _worker_of, "worker_init_fn": GREETED.append}
    seen = DataLoader(ArraySource([3] * 8), max_tokens=8, **arguments)
    assert {batch["worker"] for batch in seen} == {(0, 2, 0), (1, 2, 1)}


def _worker_of(samples):
    info = get_worker_info()
    return {"worker": (info.id, info.num_workers, GREETED[-1])}


def test_an_evaluation_gives_each_sample_exactly_once_on_any_number_of_ranks():
    """Sums over ranks are exact: dummies have no labels and nothing is repeated to fill a step."""
    source = MaskedSource([5, 9, 3, 7, 4, 6, 8])
    for ranks in (1, 3, 8):
        loaders = on_all_ranks(source, ranks, batch_size=2, max_tokens=16, sync="micro_batch")
        together = merged([epoch_of(loader) for loader in loaders])
        rows = [int(row) for step in together for batch in step for row in batch.sample_ids[:, 1]]
        assert sorted(rows) == list(range(7))
        counted = sum(batch.num_loss_tokens for step in together for batch in step)
        assert counted == source.loss_tokens().sum()


def test_an_epoch_without_a_whole_step_is_told(caplog):
    loader = DataLoader(ArraySource([3, 4]), batch_size=5, max_tokens=16, drop_last=True)
    assert len(loader) == 0
    assert list(loader) == []
    assert "2 samples do not make one step of 5, and drop_last leaves smaller steps out" in caplog.text


def test_step_tokens_follow_the_steps_of_all_epochs_in_everything_that_is_told():
    def make():
        return DataLoader(
            ArraySource(range(1, 40)),
            step_tokens=lambda step: 20 * (1 + step % 5),
            max_tokens=128,
            shuffle=True,
        )

    loader = make()
    list(loader)
    for epoch in (1, 2):
        loader.set_epoch(epoch)
        told = len(loader), list(loader.batch_sampler), loader.step(3).sample_ids[:, 1].tolist()
        where = [place.step for place in loader.where(7)]
        steps = [step[0].sample_ids[:, 1].tolist() for step in epoch_of(loader)]  # one rank, one batch a step
        state = loader.state_dict()
        given = [sorted(step) for step in steps]
        assert told[0] == len(steps)
        assert [sorted(step) for step in told[1]] == given
        assert sorted(told[2]) == given[3]
        assert where == [number for number, step in enumerate(given) if 7 in step]
        other = make()
        other.load_state_dict(state)
        assert len(other) == len(loader)
