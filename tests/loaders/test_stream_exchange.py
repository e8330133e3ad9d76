"""Streams of all ranks planned as one: nothing lost, equal steps, exact state, and no rank left waiting."""

from __future__ import annotations

import itertools
import multiprocessing
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import IterableDataset

from balancer import CostModel, runtime
from loaders import DataLoader
from tests.loaders.arrays import epoch_of
from tests.loaders.streams import Stateful, Stream, contents
from tests.support.ranks import run_ranks, run_ranks_anyway

CAP = 32
COST = CostModel(linear=1e-6, quadratic=1e-8, fixed=1e-5)


def in_turn(per_rank):
    """(rank, row) of all samples: the streams' rows in turn."""
    keys = [(row, rank) for rank, lengths in enumerate(per_rank) for row in range(len(lengths))]
    return [(rank, row) for row, rank in sorted(keys)]


def steps_by_samples(order, size, drop_last=False):
    steps = [order[at : at + size] for at in range(0, len(order), size)]
    return [step for step in steps if len(step) == size or not drop_last]


def steps_by_tokens(order, lengths, tokens):
    steps, held = [[]], 0
    for rank, row in order:
        steps[-1].append((rank, row))
        held += lengths[rank][row]
        if held >= tokens(len(steps) - 1):
            steps.append([])
            held = 0
    return steps[:-1] if not steps[-1] else steps


# ---------------------------------------------------------------------------------------- one rank


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 80), max_size=40),
    size=st.integers(1, 7),
    by=st.sampled_from(["batch_size", "global_batch_size", "step_tokens", "function"]),
    oversize=st.sampled_from(["drop", "truncate", "split"]),
    drop_last=st.booleans(),
    masked=st.booleans(),
)
def test_one_rank_alone_has_every_sample_once_in_steps_of_the_asked_size(
    lengths, size, by, oversize, drop_last, masked
):
    chosen = {
        "batch_size": {"batch_size": size},
        "global_batch_size": {"global_batch_size": size},
        "step_tokens": {"step_tokens": 20 * size},
        "function": {"step_tokens": lambda step: 20 * size + step},
    }[by]
    loader = DataLoader(
        Stream(lengths, masked),
        max_tokens=CAP,
        oversize=oversize,
        drop_last=drop_last,
        exchange=True,
        **chosen,
    )
    kept = {row: n for row, n in enumerate(lengths) if n and not (oversize == "drop" and n > CAP)}
    if oversize == "truncate":
        kept = {row: min(n, CAP) for row, n in kept.items()}
    order = [(0, row) for row in kept]
    if by in ("batch_size", "global_batch_size"):
        expected = steps_by_samples(order, size, drop_last)
    else:
        wanted = (lambda step: 20 * size) if by == "step_tokens" else (lambda step: 20 * size + step)
        expected = steps_by_tokens(order, [kept], wanted)
        last = sum(kept[row] for _, row in expected[-1]) if expected else 0
        if drop_last and expected and last < wanted(len(expected) - 1):
            expected.pop()
    steps = epoch_of(loader)
    assert len(steps) == len(expected)
    for step, samples in zip(steps, expected, strict=True):
        found = {}
        assert sum(batch.num_loss_tokens for batch in step) == step[0].step_loss_tokens
        for batch in step:
            assert batch["input_ids"].shape[1] <= CAP
            assert int((batch["shift_labels"] != -100).sum()) == batch.num_loss_tokens
            bounds = batch["cu_seq_lens_q"].tolist()
            places = zip(batch.sample_ids.tolist(), batch.starts.tolist(), strict=True)
            for (rank, row), start in places:
                a, b = bounds[0], bounds[1]
                bounds = bounds[1:]
                tokens = [1000 * row + start + t for t in range(b - a)]
                assert batch["input_ids"][0, a:b].tolist() == tokens
                found[rank, row] = found.get((rank, row), 0) + b - a
            assert batch.columns["key"] == [f"sample {row}" for _, row in batch.sample_ids.tolist()]
        assert found == {(0, row): kept[row] for _, row in samples}
    report = loader.metrics()
    assert report["kept"] == len(kept)
    assert report["empty"] == lengths.count(0)
    told = {"drop": "dropped", "truncate": "truncated", "split": "split"}[oversize]
    assert report[told] == sum(n > CAP for n in lengths)


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 80), min_size=1, max_size=30),
    chosen=st.sampled_from([{"batch_size": 3}, {"step_tokens": 50}, {"step_tokens": 200}]),
    stop=st.integers(0, 60),
    kind=st.sampled_from([Stream, Stateful]),
)
def test_u34_first_batches_and_resumed_rest_are_the_whole_also_of_samples_read_too_far(
    lengths, chosen, stop, kind
):
    arguments = {"max_tokens": CAP, "exchange": True, "oversize": "split", **chosen}
    whole = [batch for step in epoch_of(DataLoader(kind(lengths), **arguments)) for batch in step]
    loader = DataLoader(kind(lengths), **arguments)
    first = list(itertools.islice(iter(loader), min(stop, len(whole))))
    state = loader.state_dict()
    done = 1 + max((batch.step for batch in first if batch.last_in_step), default=-1)
    other = DataLoader(kind(lengths), **arguments)
    other.load_state_dict(state)
    rest = list(other)
    assert contents([rest]) == contents([[batch for batch in whole if batch.step >= done]])
    if kind is Stateful:  # what is done is not read again, but for samples behind the last mark
        assert other.dataset.reads <= len(lengths) - state["drawn"]


def test_u28_an_endless_stream_holds_no_more_than_a_step():
    alive = [0, 0]

    class Counted:
        def __init__(self):
            alive[0] += 1
            alive[1] = max(alive)

        def __del__(self):
            alive[0] -= 1

    class Many(IterableDataset):
        def __iter__(self):
            for row in itertools.count():
                yield {"input_ids": [row] * (1 + row % 13), "held": Counted()}

    for arguments in ({"batch_size": 8}, {"step_tokens": 64}):
        alive[:] = 0, 0
        loader = DataLoader(Many(), max_tokens=64, exchange=True, **arguments)
        for batch in loader:
            if batch.step == 100:
                break
        del batch
        assert alive[1] <= 48


def test_u58_a_stream_tells_its_length_or_why_it_has_none():
    loader = DataLoader(Stateful([3] * 10), batch_size=4, max_tokens=16, exchange=True)
    with pytest.raises(TypeError, match=r"the stream itself has none\. Count steps by batch\.step"):
        len(loader)

    class Sized(Stream):
        def __len__(self):
            return len(self.lengths)

    loader = DataLoader(Sized([3] * 10), batch_size=4, max_tokens=16, exchange=True)
    assert len(loader) == len(epoch_of(loader)) == 3
    with pytest.raises(TypeError, match="steps end by their tokens"):
        len(DataLoader(Sized([3]), step_tokens=4, max_tokens=16, exchange=True))


def test_a_length_that_is_told_must_be_true():
    class Told(Stream):
        def sample(self, row):
            return super().sample(row) | {"n": 3 if row != 4 else 7}

    right = {"length": lambda sample: len(sample["input_ids"]), "max_tokens": 16, "exchange": True}
    assert len(list(DataLoader(Told([3] * 8), batch_size=8, **right))) == 2
    with pytest.raises(ValueError, match="Told, sample 4: its length says 7 tokens, it has 3"):
        list(DataLoader(Told([3] * 8), length="n", max_tokens=16))
    skipping = DataLoader(Told([3] * 8), length="n", max_tokens=16, on_error="skip", exchange=True)
    assert len(list(skipping)) == 7
    assert skipping.metrics()["skipped"] == 1


def test_phases_are_weighed_by_the_units_that_samples_tell():
    class Seeing(Stream):
        def sample(self, row):
            return super().sample(row) | ({"vision": 40 * row} if row % 2 else {})

    arguments = {"batch_size": 4, "max_tokens": 16, "phases": {"vision": COST}, "cost": COST}
    for exchange in (False, True):
        loader = DataLoader(Seeing([3] * 8), exchange=exchange, **arguments)
        list(loader)
        assert loader.metrics()["units"] == {"vision": 40 * (1 + 3 + 5 + 7)}

    class Wrong(Stream):
        def sample(self, row):
            return super().sample(row) | {"vision": "much"}

    with pytest.raises(ValueError, match="'vision' must be the sample's units of work"):
        list(DataLoader(Wrong([3]), **arguments))
    with pytest.raises(ValueError, match="oversize='split' cannot be used with phases"):
        DataLoader(Wrong([3]), oversize="split", **arguments)


def test_what_exchange_needs_is_said():
    stream = Stream([3])
    with pytest.raises(ValueError, match="window has no effect with exchange"):
        DataLoader(stream, max_tokens=8, exchange=True, window=2)
    with pytest.raises(ValueError, match="exchange only has an effect on an IterableDataset"):
        DataLoader([[1, 2]], max_tokens=8, exchange=True)
    with pytest.raises(ValueError, match="step_tokens must give at least 1 token"):
        list(DataLoader(stream, max_tokens=8, exchange=True, step_tokens=lambda step: 0))
    state = DataLoader(stream, max_tokens=8, exchange=True).state_dict()
    for other, what in (
        ({"exchange": False}, "step was '1 samples', is 'not given'"),
        ({"exchange": True, "batch_size": 2}, "step was '1 samples', is '2 samples'"),
        ({"exchange": True, "num_workers": 1}, "workers was 0, is 1"),
    ):
        with pytest.raises(ValueError, match=what):
            DataLoader(stream, max_tokens=8, **other).load_state_dict(state)
    longer = DataLoader(stream, max_tokens=64, exchange=True, cost=COST)  # steps do not depend on these
    longer.load_state_dict(state)


# ------------------------------------------------------------------------------------- several ranks

LENGTHS = ([5, 20, 7, 31, 2, 9, 60, 3, 3, 8, 30, 30, 1], [12] * 5, [])
CASES = (
    ({"batch_size": 2}, (1,), "step"),
    ({"global_batch_size": 5}, (1, 2), "step"),
    ({"step_tokens": 60}, (1, 2), "micro_batch"),
    ({"batch_size": 3, "drop_last": True}, (1, 3), "step"),
)


def told_by(batch):
    return {
        "step": batch.step,
        "slot": batch.slot,
        "last": batch.last_in_step,
        "samples": [tuple(pair) for pair in batch.sample_ids.tolist()],
        "starts": batch.starts.tolist(),
        "degree": batch.cp_degree,
        "cp_rank": batch.cp_rank,
        "loss": batch.num_loss_tokens,
        "step_loss": batch.step_loss_tokens,
        "step_samples": batch.step_samples,
        "labelled": int(np.count_nonzero(batch.seq_lengths > 1)) if len(batch.sample_ids) else 0,
        "tokens": batch["input_ids"].tolist(),
        "labels": batch["shift_labels"].tolist(),
        "keys": batch.columns.get("key", []),
        "grouped": batch.cp_group is not None,
    }


def _union_on_a_real_rank(rank):
    kind = Stream if rank == 1 else Stateful
    heard = []
    for chosen, degrees, sync in CASES:
        arguments = {
            "max_tokens": CAP,
            "cp_degrees": degrees,
            "sync": sync,
            "cost": COST,
            "oversize": "split",
            "exchange": True,
            **chosen,
        }
        loader = DataLoader(kind(LENGTHS[rank], masked=rank == 1), **arguments)
        told, states = [], {}
        for batch in loader:
            runtime.check_same_plan(loader.plan, step=batch.step, table=loader.table)
            told.append(told_by(batch))
            if batch.last_in_step:
                states[batch.step] = loader.state_dict()
        rests = {}
        for step in sorted({0, len(states) // 2}):
            other = DataLoader(kind(LENGTHS[rank], masked=rank == 1), **arguments)
            other.load_state_dict(states[step])
            rests[step] = [told_by(batch) for batch in other]
        heard.append((told, rests, loader.metrics()))
    return heard


def test_u33_three_real_ranks_share_their_streams_and_resume_exactly():
    per_rank = run_ranks(_union_on_a_real_rank, 3)
    for number, (chosen, _, sync) in enumerate(CASES):
        check_union([heard[number] for heard in per_rank], chosen, sync, LENGTHS)


def check_union(heard, chosen, sync, lengths):
    order = in_turn(lengths)
    if "step_tokens" in chosen:
        expected = steps_by_tokens(order, lengths, lambda step: chosen["step_tokens"])
    else:
        size = chosen.get("global_batch_size", chosen.get("batch_size", 1) * len(lengths))
        expected = steps_by_samples(order, size, chosen.get("drop_last", False))
    for told, rests, report in heard:
        assert [batch["step"] for batch in told if batch["last"]] == list(range(len(expected)))
        for step, rest in rests.items():
            assert rest == [batch for batch in told if batch["step"] > step]
        assert report["exchanged_bytes"] > 0
        assert report["exchanged_bytes"] == heard[0][2]["exchanged_bytes"]
        if not chosen.get("drop_last"):
            assert report["kept"] == len(order)
    for step, samples in enumerate(expected):
        of_step = [[batch for batch in told if batch["step"] == step] for told, _, _ in heard]
        together = [batch for of_rank in of_step for batch in of_rank]
        tokens = {}
        for batch in together:
            assert batch["grouped"] == (batch["degree"] > 1)
            assert batch["keys"] == [f"sample {row}" for _, row in batch["samples"]]
            if batch["cp_rank"] == 0:
                for pair in batch["samples"]:
                    tokens.setdefault(pair, 0)
        assert sorted(tokens) == sorted(samples)
        found = np.sort(np.concatenate([np.ravel(batch["tokens"]) for batch in together]))
        wanted = np.concatenate([1000 * row + np.arange(lengths[rank][row]) for rank, row in samples])
        np.testing.assert_array_equal(found[found > 0], np.sort(wanted[wanted > 0]))  # 0 pads
        whole = [batch for batch in together if batch["cp_rank"] == 0]
        assert {batch["step_samples"] for batch in together} == {sum(batch["labelled"] for batch in whole)}
        assert {batch["step_loss"] for batch in together} == {sum(batch["loss"] for batch in together)}
        assert (
            sum(label >= 0 for batch in together for label in batch["labels"][0]) == together[0]["step_loss"]
        )
        if sync == "micro_batch":
            assert len({len(of_rank) for of_rank in of_step}) == 1
    if sync == "step":
        assert any(batch["degree"] > 1 for told, _, _ in heard for batch in told) or "batch_size" in chosen


def _with_workers_on_a_real_rank(rank):
    multiprocessing.current_process()._config["daemon"] = False  # which may have no workers
    stream = Stream([3 + row for row in range(12 + rank)])
    # the rank itself came from a fork server, whose workers would import everything anew
    workers = {"num_workers": 2, "multiprocessing_context": "fork"}
    arguments = {"batch_size": 3, "max_tokens": CAP, "exchange": True, **workers}
    loader = DataLoader(stream, **arguments)
    told, half = [], None
    for batch in loader:
        told.append(told_by(batch))
        if batch.last_in_step and batch.step == 1:
            half = loader.state_dict()
    other = DataLoader(stream, **arguments)
    other.load_state_dict(half)
    return told, [told_by(batch) for batch in other]


@pytest.mark.slow
def test_worker_processes_read_streams_ahead_of_the_exchange():
    heard = run_ranks(_with_workers_on_a_real_rank, 2)
    for told, rest in heard:
        assert rest == [batch for batch in told if batch["step"] > 1]
    rows = sorted(pair for told, _ in heard for batch in told for pair in batch["samples"])
    assert rows == [(0, row) for row in range(12)] + [(1, row) for row in range(13)]


def _balanced_and_not(rank):
    rng = np.random.default_rng(rank)
    lengths = np.minimum(rng.lognormal(4, 1, 64).astype(int) + 1, 512).tolist()
    found = []
    for exchange in (False, True):
        loader = DataLoader(
            Stateful(lengths), batch_size=8, max_tokens=512, exchange=exchange, window=4, cost=COST
        )
        list(loader)
        found.append(loader.metrics()["imbalance"])
    return found


def test_exchange_balances_better_than_windows_of_each_rank():
    for windows, exchanged in run_ranks(_balanced_and_not, 2):
        assert exchanged - 1 < (windows - 1) / 3


# ------------------------------------------------------------------------------------- when things fail


class Breaking(Stream):
    def sample(self, row):
        if row == 5:
            raise KeyError("text")
        return super().sample(row)


def _error_of(run):
    """What a rank hears; the others hear of it as well, so that all can go on together."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  # the texts are compared by the test
        run()
    return f"{type(caught.value).__name__}: {caught.value}"


def _all_that_fails(rank):
    def collate(samples):
        if rank == 0:
            raise TypeError("no such key")
        return {"n": len(samples)}

    def loader(stream, batch_size=2, **arguments):
        return DataLoader(stream, batch_size=batch_size, max_tokens=16, **arguments)

    stream = (Breaking if rank == 1 else Stream)([3] * 12)
    whole = loader(Stream([3] * 12), exchange=True)
    for batch in whole:
        if batch.step == 2:
            break
    resumed = loader(Stream([3] * 12), exchange=True)
    if rank == 0:
        resumed.load_state_dict(whole.state_dict())
    return {
        "window": _error_of(lambda: list(loader(stream, window=1))),
        "exchange": _error_of(lambda: list(loader(stream, exchange=True))),
        "collate": _error_of(lambda: list(loader(Stream([3] * 4), exchange=True, collate_fn=collate))),
        "states": _error_of(lambda: next(iter(resumed))),
        "sizes": _error_of(lambda: next(iter(loader(Stream([3]), batch_size=2 + rank, exchange=True)))),
    }


@pytest.fixture(scope="module")
def failures():
    return run_ranks(_all_that_fails, 2)


@pytest.mark.parametrize("how", ["window", "exchange"])
def test_a_stream_that_raises_is_told_to_the_other_ranks_at_once(failures, how):
    first, second = (heard[how] for heard in failures)
    assert second.startswith("SampleKeyError: Breaking, sample 5, stage stream: KeyError: 'text'")
    assert first.startswith("RuntimeError: step 2, reading a stream: data ranks [1] failed, so rank 0 cannot")
    assert "Rank 1 says: SampleKeyError: Breaking, sample 5" in first


def test_a_collate_fn_that_raises_is_told_to_the_other_ranks_at_once(failures):
    first, second = (heard["collate"] for heard in failures)
    assert "stage collate_fn: TypeError: no such key" in first
    assert "step 0, making batches: data ranks [0] failed, so rank 1 cannot go on" in second


def test_u33_a_missing_state_of_one_rank_is_an_error_on_all(failures):
    for heard in failures:
        assert "stand at different steps: rank 0 at 3, rank 1 at 0. Load the states that" in heard["states"]
        assert "data ranks [1] make other steps than rank 0" in heard["sizes"]


def test_u36_a_state_of_another_number_of_ranks_is_refused_with_what_is_possible():
    state = DataLoader(Stream([3]), max_tokens=8, exchange=True).state_dict()
    state["identity"]["rank"] = "0 of 2"
    with pytest.raises(ValueError, match=r"rank was '0 of 2', is '0 of 1'.*on as many ranks and workers"):
        DataLoader(Stream([3]), max_tokens=8, exchange=True).load_state_dict(state)


def _one_rank_leaves(rank):
    for batch in DataLoader(Stateful([3] * 40), batch_size=2, max_tokens=16, exchange=True):
        if rank == 1 and batch.step == 2:
            os._exit(7)


@pytest.mark.slow
def test_a_rank_that_dies_is_named_by_the_others():
    outcomes = run_ranks_anyway(_one_rank_leaves, 3)
    assert outcomes[1].exitcode == 7
    for rank in (0, 2):
        assert f"data ranks [1] did not answer to rank {rank}" in outcomes[rank].error


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


def _skips_on_a_real_rank(rank, folder):
    class Bad(Stream):
        def sample(self, row):
            return {"input_ids": [1.5]} if rank == 1 and row % 4 == 1 else super().sample(row)

    def loader(max_errors, path):
        skipping = {"on_error": "skip", "max_errors": max_errors, "quarantine": path}
        return DataLoader(Bad([3] * 12), batch_size=3, max_tokens=16, exchange=True, **skipping)

    enough = loader(3, f"{folder}/{rank}.jsonl")
    rows = [tuple(pair) for batch in enough for pair in batch.sample_ids.tolist()]
    report = enough.metrics()
    return rows, (report["skipped"], report["kept"]), _error_of(lambda: list(loader(2, f"{folder}/more")))


def test_skipped_samples_leave_the_ranks_aligned_and_are_counted_over_all_of_them(tmp_path):
    heard = run_ranks(_skips_on_a_real_rank, 2, str(tmp_path))
    rows = sorted(pair for told, _, _ in heard for pair in told)
    assert rows == [(0, row) for row in range(12)] + [(1, row) for row in range(12) if row % 4 != 1]
    assert [counted for _, counted, _ in heard] == [(3, 21)] * 2
    assert len((tmp_path / "1.jsonl").read_text().splitlines()) == 3
    assert not (tmp_path / "0.jsonl").exists()
    assert heard[1][2].startswith("TooManyRejects")
    assert "data ranks [1] failed, so rank 0 cannot go on. Rank 1 says: TooManyRejects" in heard[0][2]
