"""Micro-batches that several ranks share (case U22)."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer import CostModel, Topology, runtime
from balancer.sharding import shard
from loaders import DataLoader
from tests.loaders.arrays import ArraySource, MaskedSource, epoch_of, ids_of, merged, on_all_ranks
from tests.support.ranks import run_ranks

COST = CostModel(linear=1e-6, quadratic=1e-8, fixed=1e-5)


def groups_of(step):
    """Batches of each micro-batch, by slot and sample ids, in the order of their rank in the group."""
    groups = defaultdict(list)
    for batch in step:
        if len(batch.sample_ids):
            groups[batch.slot, batch.first_rank, batch.cp_degree].append(batch)
    return {key: sorted(batches, key=lambda batch: batch.cp_rank) for key, batches in groups.items()}


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 240), min_size=1, max_size=24),
    ranks=st.sampled_from([2, 4, 8]),
    sync=st.sampled_from(["step", "micro_batch"]),
    masked=st.booleans(),
)
def test_shards_of_a_group_hold_every_token_and_label_once(lengths, ranks, sync, masked):
    source = (MaskedSource if masked else ArraySource)(lengths)
    loaders = on_all_ranks(
        source,
        ranks,
        global_batch_size=8,
        max_tokens=64,
        cp_degrees=(1, 2, ranks),
        sync=sync,
        cost=COST,
        oversize="split",
    )
    together = merged([epoch_of(loader) for loader in loaders])
    assert sorted(row for step in ids_of(together) for _, row in step) == list(range(len(lengths)))
    for step in together:
        assert sum(batch.num_loss_tokens for batch in step) == step[0].step_loss_tokens
        for (_, _, degree), batches in groups_of(step).items():
            assert [batch.cp_rank for batch in batches] == list(range(degree))
            check_group(source, degree, batches)


def check_group(source, degree, batches):
    first = batches[0]
    tokens, shifted = [], []
    for (_, row), start, n in zip(first.sample_ids, first.starts, first.seq_lengths, strict=True):
        tokens.append(source.tokens(row)[start : start + n])
        labels = source.labels(row)[start : start + n]
        shifted.append(np.r_[labels[1:], -100])
    tokens, shifted = np.concatenate(tokens), np.concatenate(shifted)
    found = np.full(tokens.size, -1)
    for batch in batches:
        assert batch.sample_ids.tolist() == first.sample_ids.tolist()
        assert batch["input_ids"].shape[1] <= 64
        cut = shard(first.seq_lengths, degree, batch.cp_rank)
        ids, targets = batch["input_ids"][0].numpy(), batch["shift_labels"][0].numpy()
        assert (found[cut.index[cut.real]] == -1).all()
        found[cut.index[cut.real]] = ids[cut.real]
        np.testing.assert_array_equal(targets[cut.real], shifted[cut.index[cut.real]])
        assert (targets[~cut.real] == -100).all()
        np.testing.assert_array_equal(batch["position_ids"][0], cut.positions)
        np.testing.assert_array_equal(batch["cu_seq_lens_q"], cut.offsets)
        assert batch.num_loss_tokens == int((targets != -100).sum())
    np.testing.assert_array_equal(found, tokens)


def test_a_sample_above_one_ranks_cap_is_shared_instead_of_split():
    loaders = on_all_ranks(
        ArraySource([250, 10, 10, 10]), 4, batch_size=1, max_tokens=64, cp_degrees=(1, 2, 4), cost=COST
    )
    [step] = merged([epoch_of(loader) for loader in loaders])
    assert max(batch.cp_degree for batch in step) == 4
    with pytest.raises(ValueError, match=r"at most 128 tokens .* row 0 has 250"):
        DataLoader(ArraySource([250]), max_tokens=64, cp_degrees=(1, 2), topology=Topology(ranks=4), rank=0)


def test_degrees_above_the_number_of_ranks_are_refused():
    with pytest.raises(ValueError, match=r"must not exceed the number of data ranks \(2\)"):
        DataLoader(ArraySource([5]), max_tokens=64, cp_degrees=(1, 4), topology=Topology(ranks=2), rank=0)


def test_a_state_is_resumed_with_other_degrees():
    source = ArraySource(np.random.default_rng(0).integers(1, 60, 40))
    arguments = {"global_batch_size": 8, "shuffle": True, "max_tokens": 64}
    whole = list(DataLoader(source, **arguments).batch_sampler)
    loader = DataLoader(source, **arguments)
    batches = iter(loader)
    while not next(batches).last_in_step:
        pass
    resumed = on_all_ranks(source, 4, cp_degrees=(1, 2, 4), cost=COST, **arguments)
    for one in resumed:
        one.load_state_dict(loader.state_dict())
    rest = ids_of(merged([epoch_of(one) for one in resumed]))
    assert [[row for _, row in step] for step in rest] == [sorted(step) for step in whole[1:]]


def test_u22_tensor_parallel_peers_see_the_same_samples_and_data_groups_others():
    """8 processes as data 2 x context 2 x tensor 2: peers share a data rank, the mesh says so."""
    source = ArraySource([8] * 16)
    per_data_rank = [
        [batch.sample_ids.tolist() for batch in loader]
        for loader in on_all_ranks(source, 4, batch_size=4, max_tokens=32, cp_degrees=(2,), cost=COST)
    ]
    assert per_data_rank[0] == per_data_rank[1]
    assert per_data_rank[2] == per_data_rank[3]
    rows = [
        {row for batch in batches for _, row in batch} for batches in (per_data_rank[0], per_data_rank[2])
    ]
    assert rows[0] | rows[1] == set(range(16))
    assert not rows[0] & rows[1]


def _an_epoch_on_real_ranks(rank):
    source = MaskedSource([100, 60, 7, 9, 5, 77, 13])
    loader = DataLoader(source, batch_size=2, shuffle=True, max_tokens=64, cp_degrees=(1, 2), cost=COST)
    assert loader.rank == rank
    degrees, ids, loss_tokens = [], [], 0
    for batch in loader:
        runtime.check_same_plan(loader.plan, step=batch.step, table=loader.table)
        tokens = batch["input_ids"].shape[1]
        q = torch.ones(tokens, 2, 4)
        assert runtime.attention(q, q, q, batch).shape == q.shape
        assert (batch.cp_group is None) == (batch.cp_degree == 1)
        degrees.append(batch.cp_degree)
        ids += batch.sample_ids[batch.starts == 0, 1].tolist() if batch.cp_rank == 0 else []
        loss_tokens += batch.num_loss_tokens
    return degrees, ids, loss_tokens


def test_two_real_ranks_attend_together_and_end_together():
    (first, ids, mine), (second, other_ids, others) = run_ranks(_an_epoch_on_real_ranks, 2)
    assert 2 in first
    assert first.count(2) == second.count(2)
    assert sorted(ids + other_ids) == list(range(7))
    source = MaskedSource([100, 60, 7, 9, 5, 77, 13])
    assert mine + others == source.loss_tokens().sum()
