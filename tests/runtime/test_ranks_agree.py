"""Rank, world and plan on real ranks."""

import numpy as np
import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from balancer import CostModel, plan_step, runtime
from balancer.plan import MicroBatches, StepPlan
from balancer.topology import Topology
from packing.table import SampleTable
from tests.support.ranks import run_ranks


def tiny_plan(order, ranks=4):
    samples = len(order)
    return StepPlan(
        micro_batches=MicroBatches(
            first_rank=np.arange(samples, dtype=np.int32) % ranks,
            cp_degree=np.ones(samples, np.int32),
            slot=np.zeros(samples, np.int32),
            tokens=np.full(samples, 8),
            cost_s=np.ones(samples),
            order=np.asarray(order, dtype=np.int64),
            offsets=np.arange(samples + 1),
        ),
        ranks=ranks,
        sync="step",
        num_slots=1,
        rank_time_s=np.ones(ranks),
        time_s=1.0,
        lower_bound_s=1.0,
    )


def compare_plans(rank, odd_rank):
    runtime.check_same_plan(tiny_plan([0, 1, 2, 3]))
    order = [3, 2, 1, 0] if rank == odd_rank else [0, 1, 2, 3]
    try:
        runtime.check_same_plan(tiny_plan(order), step=7)
    except RuntimeError as error:
        return str(error)
    return None


def where_am_i(rank):
    everyone, place = runtime.world()
    assert (everyone.ranks, place) == (4, rank)
    assert runtime.world(Topology(ranks=4))[1] == rank
    with pytest.raises(ValueError, match="topology has 3 data ranks, the job 4"):
        runtime.world(Topology(ranks=3))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    shared, data_rank = runtime.world(device_mesh=mesh)
    assert shared.ranks == 2
    strange = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    with pytest.raises(ValueError, match="data_dims"):
        runtime.world(device_mesh=strange)
    named = runtime.world(device_mesh=strange, data_dims=("rows", "columns"))
    assert (named[0].ranks, named[1]) == (4, rank)
    pipeline = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "cp"))
    staged, staged_rank = runtime.world(device_mesh=pipeline)
    assert (staged.ranks, staged.pipeline_stages) == (2, 2)
    with pytest.raises(ValueError, match="must name them"):
        runtime.world(device_mesh=init_device_mesh("cpu", (2, 2)))
    assert dist.get_world_size() == 4
    return data_rank, staged_rank


def plan_with_unequal_seeds(rank):
    """Samples of one length: the plans are equal, the samples are not."""
    order = np.random.default_rng(rank == 1).permutation(100)[:8]
    table = SampleTable.from_lengths(np.full(100, 16)).take(order)
    plan = plan_step(table, topology=Topology(ranks=2), max_tokens=64, cost=CostModel.generic())
    runtime.check_same_plan(plan)
    with pytest.raises(
        RuntimeError, match=r"step 3: ranks \[1\] built another plan than rank 0\. Check that seed"
    ):
        runtime.check_same_plan(plan, step=3, table=table)
    return True


def test_unequal_seeds_are_told_also_where_lengths_are_equal():
    assert run_ranks(plan_with_unequal_seeds, 2) == [True, True]


@pytest.mark.parametrize("odd_rank", [0, 2])
def test_a_differing_rank_is_named_on_every_rank(odd_rank):
    messages = run_ranks(compare_plans, 4, odd_rank)
    like = 1 if odd_rank == 0 else 0
    assert set(messages) == {
        f"step 7: ranks [{odd_rank}] built another plan than rank {like}. "
        "Check that seed, sample table, topology and cost are equal on all ranks."
    }


def test_tensor_and_pipeline_peers_share_a_data_rank():
    assert run_ranks(where_am_i, 4) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_without_torch_distributed_there_is_one_rank():
    alone, place = runtime.world()
    assert (alone.ranks, place) == (1, 0)
    assert runtime.world(Topology(ranks=8), rank=5)[1] == 5
    with pytest.raises(ValueError, match=r"0\.\.7"):
        runtime.world(Topology(ranks=8), rank=8)
    with pytest.raises(ValueError, match="needs a topology"):
        runtime.world(rank=1)


def test_a_plan_for_many_ranks_needs_a_process_group():
    runtime.check_same_plan(tiny_plan([0, 1], ranks=1))
    with pytest.raises(RuntimeError, match="init_process_group"):
        runtime.check_same_plan(tiny_plan([0, 1]))
