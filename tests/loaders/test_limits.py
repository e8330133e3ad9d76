"""Caps beside max_tokens: samples of a micro-batch, bytes of logits; what closed each, and the heaviest."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balancer import CostModel, Topology, plan_step
from balancer.phases import Phase
from loaders import DataLoader
from loaders.memory import LOGIT_BYTES, Memory
from loaders.planning.limits import Limits
from packing.table import SampleTable
from tests.loaders.arrays import ArraySource, MaskedSource, epoch_of, merged, on_all_ranks
from tests.loaders.streams import Stream


class PictureSource(ArraySource):
    """Rows with patches."""

    def __init__(self, lengths, patches):
        super().__init__(lengths, name="pictures")
        self.patches = np.asarray(patches, np.int64)

    def phases(self):
        return {"vision": self.patches}


COST = CostModel(linear=1e-4, fixed=1e-3)

# ------------------------------------------------------------------------------------------------ no room


@pytest.mark.parametrize("oversize", ["error", "drop", "truncate", "split"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_cap_that_holds_no_sample_is_refused_whatever_becomes_of_long_ones(oversize, stream):
    """One token a rank, where each of two ranks holds two chunks: splitting by 0 tokens lost all data."""
    arguments = {"topology": Topology(ranks=4), "rank": 0, "cp_degrees": (2, 4), "oversize": oversize}
    data = Stream([1, 3]) if stream else ArraySource([1, 3])
    with pytest.raises(ValueError, match=r"no sample fits max_tokens=1 with cp_degrees=\(2, 4\)"):
        DataLoader(data, max_tokens=1, exchange=stream, **arguments)


# ------------------------------------------------------------------------------------------------ memory


def test_max_tokens_is_lowered_to_what_logits_leave_room_for(caplog):
    memory = Memory(budget_bytes=32 * 1000 * LOGIT_BYTES + 9, vocab_size=1000)
    assert memory.tokens == 32
    with caplog.at_level(logging.INFO, "loaders.memory"):
        loader = DataLoader(ArraySource([20, 20, 12, 32]), max_tokens=100, batch_size=4, memory=memory)
    assert "lowered from 100 to 32" in caplog.text
    batches = list(loader)
    assert max(batch["input_ids"].shape[1] for batch in batches) <= 32
    report = loader.metrics()
    assert report["max_tokens"] == 32
    assert report["memory_bytes"] == 32 * 1000 * LOGIT_BYTES <= memory.budget_bytes
    assert report["fill"] == pytest.approx(84 / (3 * 32))


@given(
    budget=st.integers(1, 10**9),
    vocab=st.integers(0, 200_000),
    token=st.floats(0, 1e6),
    logit=st.sampled_from([2, 4, 10, 12.5]),
)
def test_what_fits_fits_and_one_more_does_not(budget, vocab, token, logit):
    each = token + vocab * logit
    if not each or each > budget:
        with pytest.raises(ValueError, match="Memory"):
            Memory(budget_bytes=budget, vocab_size=vocab, token_bytes=token, logit_bytes=logit)
        return
    memory = Memory(budget_bytes=budget, vocab_size=vocab, token_bytes=token, logit_bytes=logit)
    assert memory.tokens * each <= budget * (1 + 1e-12)
    assert (memory.tokens + 1) * each > budget * (1 - 1e-12)


def test_room_enough_changes_nothing():
    memory = Memory(budget_bytes=10**9, vocab_size=100)
    loader = DataLoader(ArraySource([5, 7]), max_tokens=64, batch_size=2, memory=memory)
    list(loader)
    assert loader.metrics()["max_tokens"] == 64


def test_a_sample_beyond_the_lowered_cap_follows_oversize():
    memory = Memory(budget_bytes=100, token_bytes=10)
    with pytest.raises(ValueError, match="row 1 has 11"):
        DataLoader(ArraySource([5, 11]), max_tokens=64, memory=memory)
    loader = DataLoader(ArraySource([5, 11]), max_tokens=64, memory=memory, oversize="drop")
    assert loader.metrics()["dropped"] == 1


def test_padding_beyond_the_budget_is_refused():
    memory = Memory(budget_bytes=320, token_bytes=10)
    with pytest.raises(ValueError, match="pad_to=64 pads batches to more tokens than fit: 32"):
        DataLoader(ArraySource([5]), max_tokens=64, pad_to=64, memory=memory)
    DataLoader(ArraySource([5]), max_tokens=64, pad_to=32, memory=memory)


def test_shared_sequences_count_their_shard():
    memory = Memory(budget_bytes=160, token_bytes=10)  # 16 tokens on each rank
    loaders = on_all_ranks(ArraySource([30]), 2, max_tokens=64, memory=memory, cp_degrees=(1, 2))
    for loader in loaders:
        [batch] = list(loader)
        assert batch["input_ids"].shape[1] == 16
        assert loader.metrics()["memory_bytes"] == 160


# ------------------------------------------------------------------------------------------------ closed by


def brute_force(plan, table, limits):
    """Each micro-batch looked at by itself, sample by sample."""
    batches, found = plan.micro_batches, {}
    for m in range(len(batches)):
        mine = set(batches.samples(m).tolist())
        others = [s for s in range(len(table)) if s not in mine]
        degree = int(batches.cp_degree[m])

        def aligned(n, degree=degree):
            pieces = 2 * degree if degree > 1 else 1
            return -(-n // pieces) * pieces

        def full(units, most, mine=mine, others=others, degree=degree, aligned=aligned):
            left = [int(units[s]) for s in others if units[s] > 0]
            held = sum(aligned(int(units[s])) for s in mine)
            return bool(left) and held + aligned(min(left)) > most * degree

        if limits.max_samples is not None and len(mine) >= limits.max_samples:
            reason = "samples"
        elif full(table.num_tokens, limits.max_tokens):
            reason = "tokens"
        elif any(full(table.phases[name], most) for name, most in limits.max_units.items()):
            reason = "vision"
        else:
            reason = "balance"
        found[reason] = found.get(reason, 0) + 1
    return found


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=25),
    ranks=st.integers(1, 4),
    max_samples=st.none() | st.integers(1, 5),
    units=st.integers(0, 40),
    seed=st.integers(0, 5),
)
def test_what_closed_a_micro_batch_equals_the_obvious_count(lengths, ranks, max_samples, units, seed):
    patches = np.random.default_rng(seed).integers(0, units + 1, len(lengths))
    base = SampleTable.from_lengths(np.array(lengths))
    table = SampleTable(
        num_tokens=base.num_tokens,
        source=base.source,
        row=base.row,
        start=base.start,
        num_loss_tokens=base.num_loss_tokens,
        phases={"vision": patches},
    )
    limits = Limits(max_tokens=60, max_samples=max_samples, max_units={"vision": 40})
    plan = plan_step(
        table,
        topology=Topology(ranks=ranks),
        max_tokens=60,
        cost=COST,
        cp_degrees=tuple({1, ranks}),
        max_samples=max_samples,
    )
    assert dict(limits.closed(plan, table)) == brute_force(plan, table, limits)


def test_u26_the_limit_that_closed_each_pack_is_counted():
    loader = DataLoader(
        ArraySource([1] * 600 + [100] * 2), max_tokens=128, batch_size=602, max_samples=100, cost=COST
    )
    batches = list(loader)
    assert max(len(batch.sample_ids) for batch in batches) <= 100
    closed = loader.metrics()["closed_by"]
    assert sum(closed.values()) == len(batches)
    assert set(closed) <= {"samples", "tokens", "balance"}
    assert loader.metrics()["most_tokens"] == max(batch["input_ids"].shape[1] for batch in batches)


def test_u26_limits_on_samples_and_patches_hold_together():
    rng = np.random.default_rng(0)
    patches = rng.choice([0, 2_088], 60)
    source = PictureSource([100] * 60, patches)
    loader = DataLoader(
        source,
        max_tokens=8_192,
        batch_size=60,
        max_samples=7,
        cost=COST,
        phases={"vision": Phase(cost=COST, max_units=5_000)},
    )
    batches = list(loader)
    for batch in batches:
        assert len(batch.sample_ids) <= 7
        assert patches[batch.sample_ids[:, 1]].sum() <= 5_000
    closed = loader.metrics()["closed_by"]
    assert closed["vision"] > 0
    assert sum(closed.values()) == len(batches)


# ------------------------------------------------------------------------------------------ the heaviest


@pytest.mark.parametrize("by", ["tokens", "samples", "time"])
def test_the_heaviest_are_what_a_whole_epoch_shows(by):
    lengths = np.random.default_rng(2).integers(1, 64, 90)
    loaders = on_all_ranks(
        ArraySource(lengths), 2, batch_size=5, max_tokens=64, shuffle=True, seed=1, cost=COST
    )
    batches = [batch for step in merged([epoch_of(loader) for loader in loaders]) for batch in step]
    weight = {
        "tokens": lambda batch: batch["input_ids"].shape[1],
        "samples": lambda batch: len(batch.sample_ids),
        "time": lambda batch: COST(batch.seq_lengths).sum() + COST.fixed_s(),
    }[by]
    expected = sorted((weight(batch) for batch in batches if not batch.place.is_dummy), reverse=True)[:4]
    found = loaders[0].worst(4, by=by, epoch=0)
    np.testing.assert_allclose([heavy.weight(by) for heavy in found], expected, rtol=1e-6)


def test_u26_the_worst_are_run_first_by_all_ranks_and_nothing_moves():
    lengths = [8] * 30 + [60] + [8] * 30
    loaders = on_all_ranks(MaskedSource(lengths), 2, batch_size=3, max_tokens=64, shuffle=True, seed=0)
    state = loaders[0].state_dict()
    rehearsed = [list(loader.rehearse(2)) for loader in loaders]
    for mine in rehearsed:
        assert [batch.step for batch in mine] == [0, 1]
        assert all(batch.last_in_step for batch in mine)
        assert mine[0]["input_ids"].shape[1] >= 60
        assert 30 in mine[0].sample_ids[:, 1]
    for first, second in zip(*rehearsed, strict=True):
        assert torch.equal(first["input_ids"], second["input_ids"])
        assert first.step_loss_tokens == first.num_loss_tokens + second.num_loss_tokens
    assert loaders[0].state_dict() == state
    assert loaders[0].metrics()["steps"] == 0


def test_a_shared_worst_batch_is_run_by_every_group_and_others_idle():
    loaders = on_all_ranks(ArraySource([4, 60, 4]), 3, batch_size=1, max_tokens=32, cp_degrees=(1, 2))
    shapes = []
    for loader in loaders:
        [heavy] = loader.worst()
        assert heavy.tokens == 30
        assert len(heavy.ranks) == 2
        [batch] = list(loader.rehearse())
        shapes.append((batch.cp_degree, batch.cp_rank, batch["input_ids"].shape[1]))
    assert shapes == [(2, 0, 30), (2, 1, 30), (1, 0, 1)]


def test_the_worst_by_patches_is_found():
    patches = [1, 9, 3, 2]
    loader = DataLoader(PictureSource([5] * 4, patches), max_tokens=5, batch_size=2)
    [heavy] = loader.worst(by="vision")
    assert heavy.units == {"vision": 9}
    assert heavy.table.row.tolist() == [1]
    with pytest.raises(ValueError, match="by must be one of tokens, samples, time, vision"):
        loader.worst(by="audio")


# ------------------------------------------------------------------------------------------------ slots


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
def test_every_rank_runs_as_many_micro_batches_as_asked(sync):
    loaders = on_all_ranks(
        ArraySource([5, 9, 3, 7, 2]), 2, batch_size=3, max_tokens=16, micro_batches=4, sync=sync
    )
    for loader in loaders:
        [step] = epoch_of(loader)
        assert [batch.slot for batch in step] == [0, 1, 2, 3]
        assert [batch.last_in_step for batch in step] == [False] * 3 + [True]


def test_u18_light_ranks_are_filled_up_to_the_same_number_and_to_a_multiple():
    lengths = [9, 9, 9, 2]  # capacity 10: four micro-batches on two ranks
    for multiple, expected in ((1, {2}), (4, {4})):
        loaders = on_all_ranks(
            ArraySource(lengths),
            2,
            batch_size=2,
            max_tokens=10,
            sync="micro_batch",
            slots_multiple_of=multiple,
        )
        steps = [epoch_of(loader)[0] for loader in loaders]
        assert {len(step) for step in steps} == expected
        fillers = [batch for step in steps for batch in step if batch.place.is_dummy]
        assert len(fillers) == 2 * max(expected) - 4
        for batch in fillers:
            assert batch.num_loss_tokens == 0
            assert batch.sample_ids.shape == (0, 2)
        assert sum(batch.num_loss_tokens for step in steps for batch in step) == 8 + 8 + 8 + 1


def test_too_few_micro_batches_are_refused_when_the_step_is_planned():
    loader = DataLoader(ArraySource([9, 9, 9]), batch_size=3, max_tokens=10, micro_batches=2)
    with pytest.raises(ValueError, match="micro_batches"):
        next(iter(loader))


def test_a_number_of_slots_is_refused_where_encoders_are_planned():
    with pytest.raises(ValueError, match='phases are planned by policy="balanced" only'):
        DataLoader([[1, 2]], max_tokens=8, phases={}, policy="equal_tokens")
    with pytest.raises(ValueError, match="micro_batches and slots_multiple_of cannot be used with phases"):
        DataLoader(
            PictureSource([5], [1]), max_tokens=10, micro_batches=2, phases={"vision": Phase(cost=COST)}
        )


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"topology": 8, "rank": 0}, r"such as Topology\(ranks=8\), got 8"),
        ({"cost": "flexsp-a100-7b"}, r"CostModel\.preset\(name\), .* got 'flexsp-a100-7b'"),
        ({"memory": 20 << 30}, r"Memory\(budget_bytes=\.\.\.\), got 21474836480"),
    ],
)
def test_a_number_or_a_name_in_place_of_an_object_is_refused_at_once(wrong, sentence):
    with pytest.raises(TypeError, match=sentence):
        DataLoader([{"input_ids": [1, 2]}], batch_size=1, max_tokens=8, **wrong)
