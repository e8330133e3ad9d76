"""Bridges that need no training stack: steps, peers, groups from elsewhere, arguments, schedules."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from balancer import runtime
from balancer.runtime.adapters.megatron import packed_seq_params
from balancer.runtime.adapters.peers import broadcast_batches
from balancer.runtime.adapters.schedule import TokenSchedule
from balancer.runtime.adapters.steps import StepLoader
from balancer.runtime.peers import RingGroup
from balancer.topology import Topology
from tests.runtime.batches import PlainBatch
from tests.runtime.test_same_gradient import LENGTHS, MIXED
from tests.runtime.tiny import batches_of
from tests.support.ranks import run_ranks


def test_steps_hold_all_their_micro_batches():
    ends = [False, True, True, False, False, True]
    loader = [PlainBatch(last_in_step=end) for end in ends]
    assert [len(step) for step in StepLoader(loader)] == [2, 1, 3]
    with pytest.raises(RuntimeError, match="last_in_step"):
        list(StepLoader(loader[:4]))


def test_megatron_is_told_true_and_padded_borders():
    group = object()
    batch = PlainBatch(cp_degree=2, cp_group=group, seq_lengths=np.array([7, 4, 1], np.int32))
    told = packed_seq_params(batch)
    assert told["cu_seqlens_q"].tolist() == [0, 7, 11, 12]
    assert told["cu_seqlens_kv_padded"].tolist() == [0, 8, 12, 16]
    assert told["cu_seqlens_q"].dtype == torch.int32
    assert (told["max_seqlen_q"], told["local_cp_size"], told["qkv_format"]) == (8, 2, "thd")
    assert told["cp_group"] is group
    assert packed_seq_params(batch, tensor_degree=4)["cu_seqlens_q_padded"].tolist() == [0, 8, 16, 24]


def test_a_schedule_follows_tokens_and_its_state():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=2.0)
    schedule = TokenSchedule(optimizer, lambda tokens: 1 / (1 + tokens))
    schedule.step(PlainBatch(step_loss_tokens=3))
    assert optimizer.param_groups[0]["lr"] == 0.5
    later = TokenSchedule(torch.optim.SGD([weight], lr=9.0), lambda tokens: 1 / (1 + tokens))
    later.load_state_dict(copy.deepcopy(schedule.state_dict()))
    assert later.optimizer.param_groups[0]["lr"] == 0.5


def members(group):
    return group.ranks if isinstance(group, RingGroup) else tuple(dist.get_process_group_ranks(group))


def group_facts(rank):
    """Groups in a job of 4, of a mesh with tensor-parallel peers, and of Megatron's state."""
    groups = runtime.ContextGroups(Topology(ranks=4), [1, 2, 3, 4])
    assert len(groups) == 1  # degree 2; degree 4 is the whole job, degree 3 goes point to point
    facts = [members(groups.get(0, 4)), members(groups.get(rank - rank % 2, 2))]
    if rank < 3:
        facts.append(members(groups.get(0, 3)))
    assert groups.get(rank, 1) is None
    with pytest.raises(ValueError, match="not among the allowed"):
        groups.get(0, 5)
    with pytest.raises(ValueError, match="is not in a group of ranks"):
        groups.get((rank + 1) % 4, 1)
    assert groups.get(0, 4) is groups.get(0, 4)
    groups.close()

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    shared = runtime.ContextGroups.from_device_mesh(mesh)
    facts.append(members(shared.get(0, 2)))
    state = SimpleNamespace(
        get_data_parallel_group=lambda with_context_parallel: mesh["cp"].get_group(),
        get_pipeline_model_parallel_world_size=lambda: 1,
    )
    facts.append(members(runtime.ContextGroups.from_megatron(state).get(0, 2)))
    with pytest.raises(ValueError, match="the job 4"):
        runtime.ContextGroups(Topology(ranks=2))
    with pytest.raises(ValueError, match="CP degrees must lie in"):
        runtime.ContextGroups(Topology(ranks=4), [8])

    # peers of one data rank: global ranks 0, 1 share data rank 0
    batches = [PlainBatch(step=s, cp_degree=2, cp_rank=mesh["cp"].get_local_rank()) for s in range(3)]
    source = mesh["tp"].get_local_rank() == 0
    got = list(broadcast_batches(batches if source else None, mesh["tp"].get_group(), shared))
    assert [batch.step for batch in got] == [0, 1, 2]
    if not source:
        assert {members(batch.cp_group) for batch in got} == {members(shared.get(0, 2))}
    return facts


def test_groups_are_made_once_and_found_again():
    everyone = (0, 1, 2, 3)
    facts = run_ranks(group_facts, 4)
    for rank, found in enumerate(facts):
        pair = (rank // 2 * 2, rank // 2 * 2 + 1)
        column = (rank % 2, rank % 2 + 2)
        three = [(0, 1, 2)] if rank < 3 else []
        assert found == [everyone, pair, *three, column, column]


def read_for_peers(rank, has_loader):
    def batches():
        yield PlainBatch(step=3)
        raise KeyError("text")

    got = []
    try:
        loader = batches() if rank == 0 and has_loader else None
        got.extend(batch.step for batch in broadcast_batches(loader, dist.group.WORLD))
    except Exception as error:
        return got, f"{type(error).__name__}: {error}"
    return got, None


def test_peers_hear_of_a_loader_that_raises_or_is_missing():
    reader, *others = run_ranks(read_for_peers, 3, True)
    assert reader == ([3], "KeyError: 'text'")
    told = "RuntimeError: global rank 0, which reads for its peers, failed: KeyError: 'text'"
    assert others == [([3], told)] * 2
    reader, *others = run_ranks(read_for_peers, 3, False)
    missing = "ValueError: global rank 0 is the first of its peers and must pass the loader."
    assert reader == ([], missing)
    assert others == [([], f"RuntimeError: global rank 0, which reads for its peers, failed: {missing}")] * 2


def test_a_single_rank_needs_no_groups():
    groups = runtime.ContextGroups(Topology(ranks=1))
    assert groups.attach(PlainBatch()).cp_group is None
    with pytest.raises(RuntimeError, match="init_process_group"):
        runtime.ContextGroups(Topology(ranks=2))


def weigh_samples(rank):
    groups = runtime.ContextGroups(Topology(ranks=4))
    total = torch.zeros(8, dtype=torch.float64)
    for group, (batch, _, _, labels) in zip(
        [g for g in MIXED if g.first_rank <= rank < g.first_rank + g.degree],
        batches_of(rank, 4, MIXED, LENGTHS, groups),
        strict=True,
    ):
        weights = runtime.sample_weights(batch, labels)
        assert (weights[labels < 0] == 0).all()
        # which sample a token belongs to, from its place in the shard
        place = 0
        for sample in group.samples:
            held = -(-LENGTHS[sample] // (2 * group.degree)) * 2 if group.degree > 1 else LENGTHS[sample]
            total[sample] += weights[place : place + held].sum()
            place += held
    dist.all_reduce(total)
    return total.tolist(), runtime.sum_over_ranks(rank + 0.5)


def test_every_sample_with_labels_weighs_one():
    for total, ranks_sum in run_ranks(weigh_samples, 4):
        assert total == pytest.approx([0.0 if LENGTHS[s] < 2 else 1.0 for s in range(8)], abs=1e-6)
        assert ranks_sum == 8.0


def test_sample_mean_of_two_samples():
    batch = PlainBatch(seq_lengths=np.array([3, 7]))
    labels = torch.tensor([1, 1, -100, 2, 2, 2, 2, 2, 2, -100])
    weights = runtime.sample_weights(batch, labels) / 2  # two samples in the step
    assert weights.tolist() == pytest.approx([1 / 4] * 2 + [0] + [1 / 12] * 6 + [0])
