"""Shares, stop rules, schedules and groups (cases U30, U31)."""

from __future__ import annotations

from itertools import chain, islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders import DataLoader, Mixture
from loaders.order.schedule import Schedule
from tests.loaders.arrays import ArraySource, epoch_of, ids_of, merged, on_all_ranks


def make(name, rows, tokens=4):
    return ArraySource([tokens] * rows, name=name)


def all_ids(loader):
    return list(chain(*ids_of(epoch_of(loader))))


def until(loader, condition):
    for _ in loader:
        if condition(loader.metrics()):
            break
    return loader.metrics()


def test_u30_weights_by_tokens_give_equal_tokens_to_long_and_short_documents():
    mixture = Mixture({"a": make("a", 9000, 400), "b": make("b", 900, 4000)}, {"a": 1, "b": 1}, by="tokens")
    loader = DataLoader(mixture, batch_size=330, shuffle=True, max_tokens=1 << 18)
    told = until(loader, lambda metrics: metrics["tokens"] >= 5_000_000)
    share = told["tokens_by_source"]["a"] / told["tokens"]
    assert abs(share - 0.5) < 0.01
    assert 9.8 < told["samples_by_source"]["a"] / told["samples_by_source"]["b"] < 10.2


def test_u30_weights_by_samples_give_most_tokens_to_the_long_documents():
    mixture = Mixture({"a": make("a", 900, 400), "b": make("b", 900, 4000)}, {"a": 1, "b": 1}, by="samples")
    told = until(DataLoader(mixture, batch_size=60, max_tokens=65536), lambda metrics: metrics["steps"] == 10)
    assert told["samples_by_source"] == {"a": 300, "b": 300}
    assert told["tokens_by_source"]["b"] / told["tokens"] == pytest.approx(10 / 11)


def scheduled():
    points = {0: {"a": 1, "b": 0}, 100: {"a": 1, "b": 0}, 200: {"a": 1, "b": 1}}
    sources = {"a": make("a", 5000), "b": make("b", 5000)}
    return Mixture(sources, Schedule(points), by="samples", stop=4000)


def test_u30_a_schedule_moves_the_weights_with_the_step_and_survives_resume():
    loader = DataLoader(scheduled(), batch_size=10, shuffle=True, max_tokens=64)
    whole = [sorted(step) for step in loader.batch_sampler]
    counts = np.array([np.bincount([source for source, _ in step], minlength=2) for step in whole])
    assert counts[:100, 1].sum() == 0
    assert abs(counts[100:200, 1].sum() - 10 * 100 * 0.31) < 20  # mean of w / (1 + w) over the ramp
    assert abs(counts[200:, 1].sum() - 5 * 200) <= 2
    state = loader.state_dict() | {"position": 1500, "step": 150}
    resumed = DataLoader(scheduled(), batch_size=10, shuffle=True, max_tokens=64)
    resumed.load_state_dict(state)
    steps = ids_of([[batch] for batch in islice(resumed, 5)])
    assert steps == whole[150:155]


def test_any_function_of_the_step_gives_weights():
    mixture = Mixture(
        {"a": make("a", 5000), "b": make("b", 5000)},
        lambda step: {"a": 1.0, "b": float(step >= 30)},
        by="samples",
        stop=600,
    )
    steps = list(DataLoader(mixture, global_batch_size=10, max_tokens=64).batch_sampler)
    in_b = np.array([sum(source for source, _ in step) for step in steps])
    assert in_b[:30].tolist() == [0] * 30
    assert abs(in_b[30:].sum() - 150) <= 1


def test_a_schedule_by_step_needs_steps_of_known_size():
    with pytest.raises(ValueError, match="needs steps of a known number of samples"):
        DataLoader(scheduled(), step_tokens=100, max_tokens=64)
    with pytest.raises(ValueError, match="needs steps of a known number of samples"):
        len(scheduled())


@pytest.mark.parametrize("shuffle", [False, True])
def test_u31_all_once_gives_each_item_exactly_once(shuffle):
    mixture = Mixture(
        {"a": make("a", 3), "b": make("b", 4), "c": make("c", 3)}, by="samples", stop="all_once"
    )
    loader = DataLoader(mixture, batch_size=3, shuffle=shuffle, max_tokens=16)
    expected = (
        [(0, row) for row in range(3)] + [(1, row) for row in range(4)] + [(2, row) for row in range(3)]
    )
    for _ in range(3):
        assert sorted(all_ids(loader)) == expected


@pytest.mark.parametrize("order", [("empty", "two", "one"), ("two", "empty", "one"), ("two", "one", "empty")])
def test_u31_an_empty_source_is_told_once_and_repeats_nothing(order, caplog):
    sources = {"empty": make("empty", 0), "two": make("two", 2), "one": make("one", 1)}
    mixture = Mixture(
        {name: sources[name] for name in order}, dict.fromkeys(order, 1 / 3), by="samples", stop="all_once"
    )
    loader = DataLoader(mixture, batch_size=2, max_tokens=16)
    assert sorted((order[source], row) for source, row in all_ids(loader)) == [
        ("one", 0),
        ("two", 0),
        ("two", 1),
    ]
    assert [record.message for record in caplog.records].count(
        "mixture: source 'empty' has no usable rows and is left out"
    ) == 1


def test_u31_two_items_over_four_workers():
    loader = DataLoader(
        Mixture({"two": make("two", 2)}, stop="all_once"), batch_size=1, num_workers=4, max_tokens=8
    )
    assert sorted(all_ids(loader)) == [(0, 0), (0, 1)]


def test_first_exhausted_ends_with_the_first_and_all_exhausted_with_the_last():
    sources = {"a": make("a", 30), "b": make("b", 100)}
    first = all_ids(
        DataLoader(Mixture(sources, {"a": 1, "b": 1}, by="samples", stop="first_exhausted"), max_tokens=16)
    )
    assert sorted(row for source, row in first if source == 0) == list(range(30))
    assert abs(len(first) - 60) <= 1
    last = all_ids(DataLoader(Mixture(sources, {"a": 1, "b": 1}, by="samples"), max_tokens=16))
    assert sorted(row for source, row in last if source == 1) == list(range(100))
    repeats = np.bincount([row for source, row in last if source == 0])
    assert repeats.min() >= 3
    assert repeats.max() <= 4


def test_over_epochs_a_source_goes_on_where_it_stood():
    """With first_exhausted the longer source is not always read from its beginning."""
    sources = {"a": make("a", 25), "b": make("b", 100)}
    mixture = Mixture(sources, {"a": 1, "b": 1}, by="samples", stop="first_exhausted")
    loader = DataLoader(mixture, shuffle=True, max_tokens=16)
    rows = [row for _ in range(4) for source, row in all_ids(loader) if source == 1]
    assert len(set(rows)) == len(rows)
    assert len(rows) >= 94


def test_repeat_counts_a_sources_rows_several_times_or_only_in_part():
    sources = {"a": make("a", 10), "b": make("b", 10), "c": make("c", 10)}
    mixture = Mixture(sources, by="samples", stop="all_once", repeat={"a": 3, "c": 0.5})
    loader = DataLoader(mixture, shuffle=True, max_tokens=16)
    first, second = all_ids(loader), all_ids(loader)
    assert np.bincount([source for source, _ in first]).tolist() == [30, 10, 5]
    assert np.bincount([row for source, row in first if source == 0]).tolist() == [3] * 10
    assert sorted(row for source, row in first + second if source == 2) == list(range(10))


def test_a_number_of_samples_bounds_the_epoch():
    loader = DataLoader(Mixture({"a": make("a", 7)}, stop=20), batch_size=4, max_tokens=16)
    assert len(loader) == 5
    assert len(all_ids(loader)) == 20


def test_without_weights_sources_come_in_proportion_and_temperature_evens_them_out():
    sources = {"a": make("a", 90, 10), "b": make("b", 10, 10)}
    told = until(
        DataLoader(Mixture(sources), batch_size=100, max_tokens=64), lambda metrics: metrics["steps"] == 1
    )
    assert told["samples_by_source"] == {"a": 90, "b": 10}
    flat = Mixture(sources, temperature=2, by="samples")  # 9.5 to 3.2
    told = until(DataLoader(flat, batch_size=100, max_tokens=64), lambda metrics: metrics["steps"] == 1)
    assert told["samples_by_source"] == {"a": 75, "b": 25}


def test_groups_share_their_weight_among_their_sources():
    text = Mixture(
        {"web": make("web", 500, 10), "books": make("books", 500, 100)}, {"web": 3, "books": 1}, by="tokens"
    )
    mixture = Mixture(
        {"text": text, "code": make("code", 500, 50)}, {"text": 1, "code": 1}, by="tokens", stop=4000
    )
    told = until(DataLoader(mixture, batch_size=400, max_tokens=256), lambda metrics: metrics["steps"] == 9)
    shares = {name: tokens / told["tokens"] for name, tokens in told["tokens_by_source"].items()}
    assert list(shares) == ["text/web", "text/books", "code"]
    np.testing.assert_allclose(list(shares.values()), [0.375, 0.125, 0.5], atol=0.005)


@settings(max_examples=8)
@given(seed=st.integers(0, 50), ranks=st.integers(1, 4), num_steps=st.integers(0, 12))
def test_mixed_steps_are_the_same_for_any_number_of_ranks_and_after_a_resume(seed, ranks, num_steps):
    rng = np.random.default_rng(seed)
    sources = {name: ArraySource(rng.integers(1, 30, int(rng.integers(5, 40))), name=name) for name in "abc"}
    weights = dict(zip("abc", rng.dirichlet(np.ones(3)).tolist(), strict=True))
    arguments = {"global_batch_size": 6, "shuffle": True, "max_tokens": 32, "seed": seed}
    mixture = Mixture(sources, weights, by="tokens", stop=90)
    whole = ids_of(epoch_of(DataLoader(mixture, **arguments)))
    loader = DataLoader(mixture, **arguments)
    batches = iter(loader)
    for _ in range(num_steps):
        while not next(batches).last_in_step:
            pass
    resumed = on_all_ranks(mixture, ranks, **arguments)
    for one in resumed:
        one.load_state_dict(loader.state_dict())
    assert ids_of(merged([epoch_of(one) for one in resumed])) == whole[num_steps:]


def test_a_mixture_is_a_map_style_data_set_for_torchs_own_loader():
    mixture = Mixture({"a": make("a", 30), "b": make("b", 10)}, {"a": 3, "b": 1}, by="samples", seed=1)
    assert len(mixture) == 40
    assert torch.equal(mixture[-1]["input_ids"], mixture[39]["input_ids"])
    with pytest.raises(IndexError, match="mixture of 40 samples"):
        mixture[40]
    loader = DataLoader(
        mixture, batch_size=8, shuffle=True, num_workers=2, collate_fn=lambda samples: samples
    )
    tokens = sorted(int(sample["input_ids"][0]) for batch in loader for sample in batch)
    assert tokens == sorted(
        [1000 * row % 50021 for row in range(30)] + [1000 * row % 50021 for row in range(10)]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": {"web": 1, "cod": 1}}, "names 'cod'; the sources are web, code. Did you mean 'code'"),
        ({"weights": {"web": 1}}, "leave out .*code"),
        ({"weights": {"web": -1, "code": 1}}, "finite and not negative"),
        ({"weights": {"web": 0, "code": 0}}, "one must be above 0"),
        ({"by": "documents"}, "by must be one of tokens, samples"),
        ({"stop": "never"}, "stop must be one of"),
        ({"stop": 0}, "at least 1"),
        ({"temperature": 0}, "temperature must be a finite number above 0"),
        ({"repeat": {"cod": 2}}, "repeat names 'cod'"),
        ({"weights": lambda step: {}, "stop": "all_once"}, "schedule cannot foresee"),
    ],
)
def test_bad_mixtures_are_refused_with_a_reason(arguments, message):
    with pytest.raises(ValueError, match=message):
        Mixture({"web": make("web", 3), "code": make("code", 3)}, **arguments)


def test_a_mixture_is_read_from_yaml(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in ("web", "code"):
        pq.write_table(pa.table({"ids": [[1, 2, 3]] * 4}), tmp_path / f"{name}.parquet")
    (tmp_path / "mix.yaml").write_text(
        f"by: samples\nstop: all_once\nsources:\n"
        f"  - {{name: web, path: {tmp_path}/web.parquet, weight: 0.7, column: ids}}\n"
        f"  - {{name: code, path: {tmp_path}/code.parquet, weight: 0.3, column: ids, repeat: 2}}\n"
    )
    mixture = Mixture.from_yaml(str(tmp_path / "mix.yaml"))
    assert mixture.weights == {"web": 0.7, "code": 0.3}
    assert len(mixture) == 12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sources: [", "not YAML"),
        ("seeds: 4\nsources: []", "the mixture has seeds, which means nothing; known: by, stop"),
        ("sources: [web.parquet]", "source 0 must have a name and a path, it is 'web.parquet'"),
        (
            "sources: [{name: web, path: web.parquet, weigth: 1}]",
            "source 'web' has weigth, which means nothing",
        ),
        ("sources: [{name: web, path: web.parquet, weight: x}]", "weight of 'web' must be a number, got 'x'"),
        ("sources: [{name: web, pth: web.parquet}]", "neither a path nor sources; it has pth"),
        ("sources: [{name: all, by: rows, wieght: 1, sources: []}]", "group 'all' has wieght"),
    ],
)
def test_a_file_that_makes_no_mixture_says_which_name_is_wrong(tmp_path, text, message):
    (tmp_path / "mix.yaml").write_text(text)
    with pytest.raises(ValueError, match=message) as failure:
        Mixture.from_yaml(str(tmp_path / "mix.yaml"))
    assert str(failure.value).startswith(str(tmp_path / "mix.yaml"))


def test_fewer_than_ten_kilobytes_of_state_with_a_thousand_sources():
    import pickle

    mixture = Mixture({f"source {number}": make(f"s{number}", 2) for number in range(1000)}, stop="all_once")
    loader = DataLoader(mixture, batch_size=16, shuffle=True, max_tokens=64)
    next(iter(loader))
    assert len(pickle.dumps(loader.state_dict())) < 10_000
