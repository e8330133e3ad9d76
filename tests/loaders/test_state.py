"""States: small, equal everywhere, refused where they do not belong; counts and messages (U01, U34, U58)."""

from __future__ import annotations

import json
import multiprocessing
import pickle

import numpy as np
import pytest
import torch

from balancer import Topology
from loaders import DataLoader, Mixture
from loaders.ahead import ahead
from loaders.state import VERSION
from tests.loaders.arrays import ArraySource, epoch_of, ids_of


def make(lengths=range(1, 41), **more):
    return DataLoader(ArraySource(lengths), **{"batch_size": 4, "shuffle": True, "max_tokens": 64, **more})


def test_a_state_is_plain_small_and_survives_any_serialiser(tmp_path):
    loader = make()
    next(iter(loader))
    state = loader.state_dict()
    assert len(pickle.dumps(state)) < 1000
    assert json.loads(json.dumps(state)) == state
    torch.save(state, tmp_path / "state.pt")
    make().load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"lengths": range(2, 42)}, "data was .* is "),
        ({"seed": 3}, "order was 'shuffled with seed 0', is 'shuffled with seed 3'"),
        ({"shuffle": False}, "order was 'shuffled with seed 0', is 'row order'"),
        ({"max_tokens": 32, "oversize": "drop"}, r"usable rows was \[40\], is \[32\]"),
    ],
)
def test_a_state_of_other_data_or_order_is_refused_with_the_reason(other, message):
    with pytest.raises(ValueError, match=message):
        make(**other).load_state_dict(make().state_dict())


def test_what_does_not_change_the_order_is_no_reason_to_refuse():
    state = make().state_dict()
    make(max_tokens=128, batch_size=7, num_workers=2, sync="micro_batch", oversize="split").load_state_dict(
        state
    )


def test_states_of_a_newer_version_and_other_things_are_refused():
    with pytest.raises(
        ValueError, match=f"the state has version {VERSION + 1}, this code reads 1..{VERSION}"
    ):
        make().load_state_dict(make().state_dict() | {"version": VERSION + 1})
    with pytest.raises(ValueError, match="keys version and position must be there"):
        make().load_state_dict({"anything": 1})


def test_a_mixture_with_other_weights_is_another_order():
    def mixed(weight):
        sources = {"a": ArraySource([3] * 20), "b": ArraySource([4] * 20)}
        return DataLoader(Mixture(sources, {"a": weight, "b": 1}), max_tokens=64)

    with pytest.raises(ValueError, match=r"mixture was .*'a': 1.*is .*'a': 2"):
        mixed(2).load_state_dict(mixed(1).state_dict())


def test_u34_saving_and_loading_after_every_batch_loses_nothing():
    """A chain of loaders, each of which gives one batch."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 60, 120)
    whole = [batch.sample_ids.tolist() for batch in make(lengths, max_tokens=64)]
    found, state = [], make(lengths, max_tokens=64).state_dict()
    sizes = set()
    while True:
        loader = make(lengths, max_tokens=64)
        loader.load_state_dict(state)
        batches, step = iter(loader), []
        for batch in batches:
            step.append(batch.sample_ids.tolist())
            if batch.last_in_step:
                break
        if not step:
            break
        found += step
        state = loader.state_dict()
        sizes.add(len(json.dumps(state)))
    assert found == whole
    assert max(sizes) - min(sizes) < 8


def test_a_state_loaded_after_the_iteration_has_begun_is_used_by_the_next_one():
    loader = make()
    batches = iter(loader)
    while not next(batches).last_in_step:
        pass
    state = loader.state_dict()
    for _ in range(3):
        next(batches)
    loader.load_state_dict(state)
    with pytest.raises(RuntimeError, match="a state was loaded after this iteration had begun"):
        next(batches)  # rather than as if no state had been loaded
    assert loader.state_dict() == state
    assert ids_of(epoch_of(loader)) == ids_of(epoch_of(make()))[1:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_counts_what_was_given_out_and_not_what_was_read_ahead(num_workers):
    loader = make(num_workers=num_workers)
    batches = iter(loader)
    for _ in range(3):
        while not next(batches).last_in_step:
            pass
    assert (loader.state_dict()["position"], loader.state_dict()["step"]) == (12, 3)


# ------------------------------------------------------------------------- oversize samples, counts


def run(lengths, max_tokens, oversize):
    loader = DataLoader(
        ArraySource(lengths), batch_size=len(lengths), max_tokens=max_tokens, oversize=oversize
    )
    batches = list(loader)
    return loader.metrics(), batches


def test_u01_each_policy_for_long_samples_accounts_for_every_token():
    with pytest.raises(ValueError, match=r"1 of 4 samples of arrays are too long.* 4 tokens.*row 0 has 5"):
        run([5, 2, 3, 1], 4, "error")
    for oversize, kept, cut in (("drop", 6, 5), ("truncate", 10, 1), ("split", 11, 0)):
        told, batches = run([5, 2, 3, 1], 4, oversize)
        assert (told["tokens"], told["cut_tokens"]) == (kept, cut)
        assert sum(int(batch.seq_lengths.sum()) for batch in batches) == kept
        assert told["tokens"] + told["cut_tokens"] == 11
    assert len(run([5, 2, 3, 1], 4, "split")[1]) == 3
    assert sorted(int(n) for batch in run([121], 60, "split")[1] for n in batch.seq_lengths) == [1, 60, 60]


def test_u59_rows_are_counted_by_what_became_of_them(caplog):
    told, _ = run([9, 9, 9, 0, 0, 3, 4], 8, "drop")
    counts = {name: told[name] for name in ("kept", "dropped", "truncated", "split", "empty")}
    assert counts == {"kept": 2, "dropped": 3, "truncated": 0, "split": 0, "empty": 2}
    assert "arrays: of 7 samples 3 dropped, 2 empty; 27 tokens are left out" in caplog.text
    assert run([9, 3], 8, "truncate")[0]["truncated"] == 1
    assert run([9, 3], 8, "split")[0]["split"] == 1


def test_metrics_tell_what_the_steps_were_like():
    loader = make([16] * 8, batch_size=4, max_tokens=64)
    assert loader.metrics()["steps"] == 0
    list(loader)
    told = loader.metrics()
    assert (told["steps"], told["samples"], told["tokens"], told["loss_tokens"]) == (2, 8, 128, 120)
    assert told["fill"] == 1.0
    assert told["imbalance"] == 1.0
    assert told["cost"] == "generic decoder"
    assert told["plan_ms"] > 0
    assert told["wait_s"] > 0
    assert told["tokens_by_source"] == {"arrays": 128}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be a positive integer"),
        ({"batch_size": None}, "batch_size must be a positive integer with max_tokens, got None"),
        ({"sampler": [0, 1]}, "sampler cannot be used with max_tokens"),
        ({"batch_sampler": [[0, 1]]}, "batch_sampler cannot be used with max_tokens"),
        ({"global_batch_size": 4, "step_tokens": 9}, "both fix a step's samples"),
        ({"global_batch_size": 0}, "global_batch_size must be a whole number"),
        ({"step_tokens": -3}, "step_tokens must be a whole number"),
        ({"sync": "never"}, "sync must be one of step, micro_batch, got 'never'"),
        ({"policy": "best"}, "policy must be one of .*, got 'best'"),
        ({"oversize": "cut"}, "oversize must be one of error, drop, truncate, split, got 'cut'"),
        ({"engine": "remote"}, "engine must be"),
        ({"pad_to": 32}, r"the largest at least max_tokens \(64\)"),
        ({"cp_degrees": ()}, "cp_degrees must be one or more"),
        ({"rank": 0}, "rank=0 needs a topology"),
        ({"length": "n"}, "length='n' has no effect on an opened source"),
        ({"lengths": [0, 0]}, "of 2 rows in arrays, 2 are empty"),
        ({"lengths": []}, "there is no sample to give out"),
        ({"lengths": [99], "oversize": "drop"}, "1 are dropped for their length"),
    ],
)
def test_arguments_out_of_range_are_refused_with_a_way_out(arguments, message):
    with pytest.raises(ValueError, match=message):
        make(**arguments)


def test_a_setting_without_effect_is_told(caplog):
    make(global_batch_size=8, batch_size=4)
    assert "batch_size=4 has no effect: global_batch_size fixes the samples of a step" in caplog.text


def test_steps_of_a_function_must_have_tokens():
    with pytest.raises(ValueError, match="at least 1 token a step, it gave 0 for step 2"):
        list(make(batch_size=1, step_tokens=lambda step: 8 * (step < 2)))


def test_u58_the_length_told_before_is_the_number_of_steps_run():
    for arguments in (
        {},
        {"drop_last": True},
        {"global_batch_size": 7},
        {"batch_size": 1, "step_tokens": 50},
    ):
        loader = make(**arguments)
        assert len(loader) == len(loader.batch_sampler) == len(iter(loader)) == len(epoch_of(loader))
    assert len(loader.sampler) == 40


def test_u07_packing_is_no_length_curriculum_and_epochs_group_samples_anew():
    from scipy.stats import spearmanr

    loader = make(np.repeat(np.arange(1, 251), 4), batch_size=10, max_tokens=2048)
    first = list(loader.batch_sampler)
    mean_lengths = [np.mean([row // 4 for row in step]) for step in first]
    assert abs(spearmanr(range(len(first)), mean_lengths).statistic) < 0.25
    loader.set_epoch(1)
    assert {frozenset(step) for step in first}.isdisjoint(frozenset(step) for step in loader.batch_sampler)
    plain = make(range(1, 101), shuffle=False, batch_size=8, max_tokens=128)
    assert [row for step in plain.batch_sampler for row in step] == list(range(100))


class Failing(ArraySource):
    def read(self, rows):
        if 7 in rows:
            raise KeyError("sample 7 has no field 'text'")
        return super().read(rows)


# torch takes 5 s to end each worker once one has raised
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_u59_an_error_of_a_source_reaches_the_loop_with_its_text(num_workers):
    loader = DataLoader(Failing([3] * 20), batch_size=2, max_tokens=8, num_workers=num_workers)
    with pytest.raises(KeyError, match="sample 7 has no field"):
        list(loader)


def test_an_error_of_the_planner_reaches_the_loop(monkeypatch):
    loader = make()
    monkeypatch.setattr(type(loader.planning.steps), "members", lambda self, cursor: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(iter(loader))


def test_a_dropped_iteration_ends_its_planning_thread_and_its_workers():
    import threading
    import time

    def planning():
        return {thread for thread in threading.enumerate() if thread.name == "evenload-plan-ahead"}

    others = planning()  # of iterations that earlier tests still hold
    loader = make(num_workers=1, topology=Topology(2), rank=0)
    batches = iter(loader)
    next(batches)
    assert planning() - others
    workers = list(batches._reading._workers)
    del batches
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if not planning() - others and not any(worker.is_alive() for worker in workers):
            return
        time.sleep(0.05)
    pytest.fail("a thread or a worker was left behind")


def test_an_interrupt_that_meets_a_kernel_reaches_the_loop_as_itself(monkeypatch):
    def interrupted(*_, **__):
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()  # as numba does

    loader = make()
    monkeypatch.setattr(type(loader.planning), "plan", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iter(loader))


@pytest.mark.parametrize("begun", ["not at all", "half-way", "to the end"])
def test_a_loader_can_be_pickled_and_goes_on_as_the_original_does(begun):
    loader = make(shuffle=True)
    batches = iter(loader)
    for _ in range({"not at all": 0, "half-way": 2, "to the end": 10_000}[begun]):
        next(batches, None)
    other = pickle.loads(pickle.dumps(loader))
    assert other.state_dict() == loader.state_dict()
    for each in (loader, other):
        each.load_state_dict(each.state_dict())
    assert ids_of(epoch_of(other)) == ids_of(epoch_of(loader))


def test_a_forked_process_is_told_that_it_cannot_go_on_with_an_iteration():
    items = ahead(lambda: iter(range(100)), 2)
    assert next(items) == 0

    def go_on():
        with pytest.raises(RuntimeError, match="begun in process"):
            next(items)

    child = multiprocessing.get_context("fork").Process(target=go_on, daemon=True)
    child.start()
    child.join(300)
    assert child.exitcode == 0
    assert list(items) == list(range(1, 100))
