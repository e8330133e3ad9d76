"""Cases of people who load training data, by their numbers, on the balanced loader."""

from __future__ import annotations

import logging
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from balancer import CostModel, Topology
from balancer.runtime import attention
from loaders import DataLoader, Mixture, open_source
from loaders.planning.inspection import inspect_loader
from loaders.state import Cursor
from tests.loaders.arrays import ArraySource, epoch_of, ids_of, merged, on_all_ranks
from tests.loaders.test_borders import GivenRows

COST = CostModel(linear=1e-4, fixed=1e-3)

# ------------------------------------------------------------------------------------------------ U02


def test_u02_borders_of_two_documents_are_where_kernels_look_for_them():
    [batch] = list(DataLoader(ArraySource([3, 2]), batch_size=2, max_tokens=8))
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 5]
    assert batch["cu_seq_lens_q"].dtype == torch.int32
    assert type(batch["max_length_q"]) is int
    assert batch["max_length_q"] == 3
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1]]
    assert batch["seq_idx"].tolist() == [[0, 0, 0, 1, 1]]


def test_u02_a_document_does_not_see_another_to_the_last_bit():
    torch.manual_seed(0)
    embed, mix = torch.nn.Embedding(100, 8), torch.nn.Linear(8, 24)

    def outputs(rows):
        [batch] = list(DataLoader(GivenRows(rows), batch_size=2, max_tokens=8))
        q, k, v = mix(embed(batch["input_ids"][0])).unflatten(1, (2, 12)).split(4, dim=2)
        seen = attention(q, k, v, batch)
        return {
            int(row): seen[a:b]
            for (_, row), a, b in zip(
                batch.sample_ids, batch["cu_seq_lens_q"], batch["cu_seq_lens_q"][1:], strict=False
            )
        }

    one, other = outputs([[1, 2, 3], [4, 5]]), outputs([[1, 99, 3], [4, 5]])
    assert torch.equal(one[1], other[1])
    assert not torch.equal(one[0], other[0])


# ------------------------------------------------------------------------------------------------ U14


def chat(answers_behind_the_cut, whole):
    """Prompts of 200 tokens with answers of 10; and samples that fit."""
    long, short = [-100] * 200 + [1] * 10, [-100] * 20 + [1] * 10
    rows = [[1] * 210] * answers_behind_the_cut + [[1] * 30] * whole
    return GivenRows(rows, [long] * answers_behind_the_cut + [short] * whole)


def test_u14_samples_that_truncation_leaves_without_labels_are_left_out_and_counted_apart(caplog):
    with caplog.at_level(logging.WARNING, "loaders.catalog"):
        loader = DataLoader(chat(3, 5), batch_size=8, max_tokens=64, oversize="truncate")
    assert "3 samples have all their labels behind the cut" in caplog.text
    told = loader.metrics()
    assert (told["unlabelled"], told["truncated"], told["kept"]) == (3, 0, 5)
    assert told["cut_tokens"] == 3 * 210
    assert [row for step in ids_of(epoch_of(loader)) for _, row in step] == [3, 4, 5, 6, 7]


def test_u14_a_run_without_anything_to_train_on_stops_before_its_first_step():
    with pytest.raises(ValueError, match="truncation leaves 8 without a label"):
        DataLoader(chat(8, 0), batch_size=8, max_tokens=64, oversize="truncate")


def test_u14_samples_masked_on_purpose_are_no_loss_of_truncation():
    source = GivenRows([[1] * 100, [1] * 100], [[-100] * 100, [-100] * 30 + [1] * 70])
    loader = DataLoader(source, batch_size=2, max_tokens=64, oversize="truncate")
    assert loader.metrics()["unlabelled"] == 0
    assert loader.metrics()["truncated"] == 2
    [step] = epoch_of(loader)
    assert step[0].step_loss_tokens == 34


def test_u14_only_rows_that_may_lose_all_are_looked_at():
    source = GivenRows([[1] * 100] * 3, [[1] * 100, [-100] * 10 + [1] * 90, [-100] * 70 + [1] * 30])
    DataLoader(source, batch_size=2, max_tokens=64, oversize="truncate")
    assert source.reads == 1


# ------------------------------------------------------------------------------------------------ U16


class Trainable(ArraySource):
    """Samples with few or many labels."""

    def __init__(self, lengths, counts):
        super().__init__(lengths)
        self.counts = np.asarray(counts, np.int64)

    def loss_tokens(self):
        return self.counts


TRAINABLE = [200, 200, 7_900, 7_900, 4_000, 4_000, 1_000, 7_000]


def trainable(rank=0, lengths=(8_000,) * 8, counts=TRAINABLE, **arguments):
    arguments = {"batch_size": 2, "max_tokens": 8_000, "cost": CostModel(linear=1e-4)} | arguments
    return DataLoader(Trainable(lengths, counts), topology=Topology(ranks=4), rank=rank, **arguments)


def test_u16_trainable_tokens_can_be_balanced_under_the_cap():
    loader = trainable(phases={"loss_tokens": CostModel(linear=1e-4)})
    plan = loader.step(0).plan
    assert plan.imbalance == pytest.approx(1.0)
    assert plan.micro_batches.tokens.max() <= 8_000
    per_rank = [
        sum(TRAINABLE[s] for m in plan.for_rank(rank) for s in plan.micro_batches.samples(m))
        for rank in range(4)
    ]
    assert max(per_rank) / np.mean(per_rank) <= 1.01


def test_u16_both_counts_are_told_for_each_rank():
    loader = trainable(phases={"loss_tokens": CostModel(linear=1e-4)})
    list(loader)
    report = loader.metrics()
    assert report["rank_tokens"] == {"min": 16_000, "max": 16_000, "mean": 16_000}
    labels = report["rank_loss_tokens"]
    assert labels["mean"] == sum(TRAINABLE) / 4
    assert labels["max"] / labels["mean"] <= 1.01
    assert labels["min"] / labels["mean"] >= 0.99
    by_default = trainable()
    list(by_default)
    assert by_default.metrics()["rank_tokens"] == report["rank_tokens"]
    assert by_default.metrics()["rank_loss_tokens"]["mean"] == labels["mean"]


@pytest.mark.parametrize("degrees", [(1,), (1, 2, 4)])
def test_u16_counts_of_ranks_are_those_of_their_batches(degrees):
    draw = np.random.default_rng(8)
    lengths = draw.integers(1, 100 * max(degrees), 200)
    counts = draw.integers(0, lengths)
    loaders = [
        trainable(rank, lengths, counts, max_tokens=100, cp_degrees=degrees, shuffle=True)
        for rank in range(4)
    ]
    tokens = np.zeros((len(loaders[0]), 4))
    labels = np.zeros_like(tokens)
    for rank, loader in enumerate(loaders):
        for batch in loader:
            rows = batch.sample_ids[:, 1]
            tokens[batch.step, rank] += lengths[rows].sum() / batch.cp_degree
            labels[batch.step, rank] += counts[rows].sum() / batch.cp_degree
    for loader in loaders:
        report = loader.metrics()
        for name, found in (("rank_tokens", tokens), ("rank_loss_tokens", labels)):
            assert report[name] == pytest.approx(
                {
                    "min": found.min(axis=1).mean(),
                    "max": found.max(axis=1).mean(),
                    "mean": found.mean(axis=1).mean(),
                }
            )


# ------------------------------------------------------------------------------------------------ U17


@pytest.mark.parametrize("size", [1, 2, 7, 8, 17, 40])
@pytest.mark.parametrize("drop_last", [False, True])
def test_u17_every_rank_runs_the_steps_that_were_announced(size, drop_last):
    for ranks in range(1, 9):
        for batch_size in (1, 3, 4):
            loaders = on_all_ranks(
                ArraySource([5] * size), ranks, batch_size=batch_size, max_tokens=16, drop_last=drop_last
            )
            counts = {len(epoch_of(loader)) for loader in loaders}
            whole, rest = divmod(size, ranks * batch_size)
            assert counts == {len(loaders[0])} == {whole + (rest > 0 and not drop_last)}


def test_u17_no_samples_are_a_clear_error():
    with pytest.raises(ValueError, match="there is no sample to give out"):
        DataLoader(ArraySource([]), max_tokens=8)


# ------------------------------------------------------------------------------------------------ U24


def test_u24_eight_samples_of_seven_need_eight_packs_of_eight():
    loader = DataLoader(ArraySource([7] * 8), batch_size=8, max_tokens=8)
    assert [batch["input_ids"].shape[1] for batch in loader] == [7] * 8
    assert loader.metrics()["fill"] == pytest.approx(7 / 8)


def test_u24_padded_micro_batches_count_the_longest_of_each():
    loader = DataLoader(ArraySource([1, 1, 1, 1, 1, 20]), batch_size=6, max_tokens=50, policy="padded")
    plan = loader.step(0).plan
    assert plan.micro_batches.tokens.max() <= 50
    for m in range(len(plan.micro_batches)):
        samples = plan.micro_batches.samples(m)
        assert len(samples) * max([1, 1, 1, 1, 1, 20][s] for s in samples) <= 50


def test_u24_no_batch_of_a_thousand_random_steps_passes_the_cap():
    draw = np.random.default_rng(0)
    loader = DataLoader(ArraySource(draw.integers(1, 65, 8_000)), batch_size=8, max_tokens=64, shuffle=True)
    assert max(batch["input_ids"].shape[1] for batch in loader) <= 64


# ------------------------------------------------------------------------------------ U33, U36, U38


def sequence(loader, limit=None):
    found = []
    for batch in loader:
        found.append((batch.step, batch.slot, batch.sample_ids.tolist(), batch["input_ids"].tolist()))
        if limit is not None and len(found) == limit:
            break
    return found


@pytest.mark.parametrize("load", ["before", "after"])
def test_u33_wherever_it_stops_it_goes_on_exactly(load):
    lengths = np.random.default_rng(5).integers(1, 60, 40)
    arguments = {"batch_size": 2, "shuffle": True, "max_tokens": 64, "seed": 3}
    for rank in range(4):
        whole = sequence(on_all_ranks(ArraySource(lengths), 4, **arguments)[rank])
        for k in range(len(whole) + 1):
            first = on_all_ranks(ArraySource(lengths), 4, **arguments)[rank]
            taken = sequence(first, k) if k else []
            resumed = on_all_ranks(ArraySource(lengths), 4, **arguments)[rank]
            if load == "after":
                iter(resumed)
            resumed.load_state_dict(first.state_dict())
            again = sequence(resumed)
            # a state between a step's micro-batches goes back to its beginning
            done = first.state_dict()["step"]
            assert [batch for batch in taken if batch[0] < done] + again == whole


def test_u36_the_rest_comes_once_on_any_number_of_ranks_and_in_the_same_steps():
    def make(ranks, samples):
        return on_all_ranks(
            ArraySource([7] * 96), ranks, global_batch_size=samples, max_tokens=32, shuffle=True, seed=1
        )

    whole = ids_of(merged([epoch_of(loader) for loader in make(4, 4)]))
    first = make(4, 4)
    for loader in first:
        for batch in loader:
            if batch.last_in_step and batch.step == 9:
                break
    state = first[0].state_dict()
    assert all(loader.state_dict() == state for loader in first)
    for ranks, samples in ((2, 4), (1, 4), (8, 8), (3, 6)):
        loaders = make(ranks, samples)
        for loader in loaders:
            loader.load_state_dict(state)
        steps = ids_of(merged([epoch_of(loader) for loader in loaders]))
        assert sorted(chain.from_iterable(steps)) == sorted(chain.from_iterable(whole[10:]))
        if samples == 4:
            assert steps == whole[10:]
        assert len(steps[-1]) == (56 % samples or samples)


class ManyRows(ArraySource):
    """A million rows, of which reading is counted."""

    def __init__(self):
        super().__init__(np.full(1_000_000, 20))

    def fingerprint(self):
        return "many"


def test_u38_a_resume_at_ninety_percent_reads_nothing_that_is_past():
    def make(source):
        return DataLoader(source, batch_size=100, shuffle=True, max_tokens=4_000)

    first = make(ManyRows())
    state = first.state_dict() | {"position": 900_000, "step": 9_000}
    source = ManyRows()
    resumed = make(source)
    resumed.load_state_dict(state)
    batch = next(iter(resumed))
    assert batch.step == 9_000
    assert source.reads < 1_000


# ------------------------------------------------------------------------------------------------ U40, U45


def folder(path, counts):
    start = 0
    for number, count in enumerate(counts):
        ids = pa.array([[row, row] for row in range(start, start + count)], pa.list_(pa.int32()))
        pq.write_table(pa.table({"input_ids": ids}), path / f"{number}.parquet")
        start += count
    return str(path / "*.parquet")


@pytest.mark.parametrize(("counts", "ranks"), [((1, 10, 100, 3, 0), 3), ((50,), 3), ((7,), 8)])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_u40_each_row_of_any_number_of_files_comes_once(tmp_path, counts, ranks, num_workers):
    if num_workers and ranks == 8:
        ranks = 4  # two processes a rank are enough to show it
    pattern = folder(tmp_path, counts)
    loaders = on_all_ranks(
        open_source(pattern), ranks, batch_size=2, max_tokens=8, shuffle=True, num_workers=num_workers
    )
    steps = [epoch_of(loader) for loader in loaders]
    assert {len(one) for one in steps} == {len(loaders[0])}
    rows = [
        int(batch["input_ids"][0, start])
        for batch in chain.from_iterable(chain.from_iterable(steps))
        for start in batch["cu_seq_lens_q"][:-1].tolist()
        if len(batch.sample_ids)
    ]
    assert sorted(rows) == list(range(sum(counts)))


class Billions(ArraySource):
    """A thousand rows of a million and a half tokens: lengths alone."""

    def __init__(self, name):
        super().__init__(np.full(1_000, 1_500_000), name=name)

    def fingerprint(self):
        return self.name


def test_u45_billions_of_tokens_are_counted_in_64_bits():
    names = ("a", "b", "c")
    mixture = Mixture({name: Billions(name) for name in names}, dict.fromkeys(names, 1 / 3), stop="all_once")
    loader = DataLoader(mixture, global_batch_size=3_000, max_tokens=1 << 21, cost=COST)
    found = inspect_loader(loader, steps=0)
    assert sum(source.tokens for source in found.sources) == 4_500_000_000
    table, behind = loader.planning.steps.members(Cursor())
    assert int(table.num_tokens.sum()) == 4_500_000_000
    assert behind.position == 3_000


def test_u45_a_micro_batch_above_31_bits_is_refused():
    with pytest.raises(ValueError, match="at most 2147483647 tokens"):
        DataLoader(ArraySource([5]), max_tokens=1 << 31)
    with pytest.raises(ValueError, match="largest CP degree is 4294967296"):
        DataLoader(
            ArraySource([5]), max_tokens=1 << 30, topology=Topology(ranks=4), rank=0, cp_degrees=(1, 4)
        )
    assert float(CostModel(quadratic=1.0)([131_072] * 1_000_000).sum()) > 8e15


# ------------------------------------------------------------------------------------------------ U51


@pytest.mark.parametrize("max_tokens", [32, 33])
def test_u51_a_capacity_that_does_not_divide_is_told_and_loses_one_token_a_rank(max_tokens, caplog):
    lengths = np.random.default_rng(4).integers(1, 60, 400)

    def loader(degrees, source=None):
        return DataLoader(
            source or ArraySource(lengths),
            batch_size=8,
            max_tokens=max_tokens,
            topology=Topology(ranks=4),
            rank=0,
            cp_degrees=degrees,
            cost=COST,
        )

    with caplog.at_level(logging.WARNING, "loaders.arguments"):
        mixed = loader((1, 2, 4))
        loader((1,), ArraySource([5] * 8))
    told = [record.getMessage() for record in caplog.records if record.name == "loaders.arguments"]
    assert len(told) == max_tokens % 2
    if told:
        assert "each rank holds at most 32" in told[0]
        assert "Nothing is lost with 32 or 34" in told[0]
    seen = set()
    for step in map(mixed.step, range(len(mixed))):
        batches = step.plan.micro_batches
        for m in range(len(batches)):
            degree = int(batches.cp_degree[m])
            seen.add(degree)
            pieces = 2 * degree if degree > 1 else 1
            padded = (-(-lengths[step.table.row[batches.samples(m)]] // pieces) * pieces).sum()
            assert batches.tokens[m] == padded <= degree * (max_tokens if degree == 1 else 32)
    assert seen - {1}
    assert loader((1,), ArraySource([max_tokens])).step(0).plan.micro_batches.tokens.tolist() == [max_tokens]
    # the longest sample that d ranks can hold is one that fills all of their even tokens
    assert loader((2,), ArraySource([64])).step(0).plan.micro_batches.tokens.tolist() == [64]
    with pytest.raises(ValueError, match="65"):
        loader((2,), ArraySource([65]))


# ------------------------------------------------------------------------------------------------ U57


def test_u57_each_batch_tells_its_real_tokens_and_their_documents():
    loaders = on_all_ranks(
        ArraySource([5, 9, 12]), 2, batch_size=2, max_tokens=14, pad_to=16, sync="micro_batch"
    )
    [step] = merged([epoch_of(loader) for loader in loaders])
    assert sorted(int(batch.real_tokens().sum()) for batch in step) == [12, 14]
    for batch in step:
        real = batch.real_tokens()
        assert real.shape == batch["input_ids"].shape == (1, 16)
        documents = batch["seq_idx"][real]
        assert torch.bincount(documents).tolist() == batch.seq_lengths.tolist()
        assert torch.all(batch["labels"][~real] == -100)


def test_u57_ranks_of_an_expert_group_can_have_equally_many_tokens():
    loaders = on_all_ranks(
        ArraySource([5, 9, 12]), 2, batch_size=2, max_tokens=14, pad_to="slot", sync="micro_batch"
    )
    [step] = merged([epoch_of(loader) for loader in loaders])
    assert [batch["input_ids"].shape[1] for batch in step] == [14, 14]
    assert sorted(int(batch.real_tokens().sum()) for batch in step) == [12, 14]
    with pytest.raises(ValueError, match='needs sync="micro_batch"'):
        DataLoader(ArraySource([3]), max_tokens=8, pad_to="slot")


def test_u57_slots_of_any_step_are_of_one_width_dummies_and_shards_included():
    lengths = np.random.default_rng(0).integers(1, 120, 60)
    loaders = on_all_ranks(
        ArraySource(lengths),
        4,
        batch_size=5,
        max_tokens=64,
        pad_to="slot",
        sync="micro_batch",
        cp_degrees=(1, 2),
    )
    for step in zip(*map(epoch_of, loaders), strict=True):
        for together in zip(*step, strict=True):
            assert len({batch["input_ids"].shape[1] for batch in together}) == 1
            assert max(batch["input_ids"].shape[1] for batch in together) <= 64


def test_u57_dummies_and_alignment_are_not_real():
    loaders = on_all_ranks(ArraySource([7, 30]), 3, batch_size=1, max_tokens=16, cp_degrees=(1, 2))
    [step] = merged([epoch_of(loader) for loader in loaders])
    assert sum(int(batch.real_tokens().sum()) for batch in step) == 37
    for batch in step:
        if batch.place.is_dummy:
            assert not batch.real_tokens().any()
