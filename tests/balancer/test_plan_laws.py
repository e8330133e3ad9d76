"""Laws that hold for every policy, sync mode, shape and option."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import POLICIES, CostModel, Topology, check_plan, plan_step

COST = CostModel(linear=2e-4, quadratic=1e-8, fixed=0.05)
lengths = st.lists(st.integers(1, 1000), max_size=60).map(lambda x: np.array(x, np.int64))
sync_modes = st.sampled_from(["step", "micro_batch"])


@st.composite
def steps(draw):
    """Arguments of a step that some plan can hold."""
    ranks = draw(st.integers(1, 9))
    degrees = draw(st.sets(st.integers(1, ranks), min_size=1, max_size=4))
    cap = draw(st.integers(100, 1500))
    longest = max(degrees) * (cap // (2 * max(degrees)) * 2)
    speed = draw(st.none() | st.lists(st.sampled_from([0.5, 1.0, 1.3]), min_size=ranks, max_size=ranks))
    topology = Topology(
        ranks,
        ranks_per_node=draw(st.none() | st.integers(1, ranks)),
        speed=speed,
        pipeline_stages=draw(st.sampled_from([1, 1, 3])),
    )
    fixed = draw(st.sampled_from([0.0, 0.02]))
    return {
        "table_or_lengths": np.array(draw(st.lists(st.integers(1, max(1, longest)), max_size=50)), np.int64),
        "topology": topology,
        "max_tokens": cap,
        "cost": CostModel(linear=2e-4, quadratic=draw(st.sampled_from([0.0, 1e-6])), fixed=fixed),
        "cp_degrees": tuple(degrees),
        "sync": draw(sync_modes),
    }


@given(step=steps())
def test_every_option_gives_a_lawful_plan(step):
    check(plan_step(**step), step)


def check(plan, step):
    batches, ranks = plan.micro_batches, step["topology"].ranks
    assert sorted(plan.order.tolist()) == list(range(len(step["table_or_lengths"])))
    degree = batches.cp_degree
    assert np.all(batches.tokens <= step["max_tokens"] * degree)
    assert np.all(np.diff(plan.offsets) > 0)
    assert set(degree.tolist()) <= set(step["cp_degrees"])
    assert np.all(batches.first_rank % degree == 0)
    assert np.all(batches.first_rank + degree <= ranks)
    for m in range(len(batches)):
        n = step["table_or_lengths"][batches.samples(m)]
        if plan.policy == "padded":
            n = np.full_like(n, n.max())
        pieces = 2 * degree[m] if degree[m] > 1 else 1
        assert batches.tokens[m] == (-(-n // pieces) * pieces).sum()
        expected = step["cost"].fixed + step["cost"](n, int(degree[m])).sum()
        assert batches.cost_s[m] == pytest.approx(expected, abs=1e-8 * (1 + n.size))
    seen = set()
    for rank in range(ranks):
        mine = plan.for_rank(rank)
        assert np.all(np.diff(batches.slot[mine]) > 0)
        seen |= set(mine.tolist())
    assert seen == set(range(len(batches)))
    assert plan.num_slots == batches.slot.max(initial=-1) + 1
    check_plan(
        plan,
        step["table_or_lengths"],
        max_tokens=step["max_tokens"],
        cost=step["cost"],
        cp_degrees=step["cp_degrees"],
    )
    assert plan.time_s >= plan.lower_bound_s
    assert plan.gap >= 0
    assert plan.time_s >= plan.rank_time_s.max() - 1e-9 or plan.sync == "micro_batch"


@pytest.mark.parametrize("policy", sorted(POLICIES))
@given(lengths=lengths, ranks=st.integers(1, 9), cap=st.integers(1000, 4000), sync=sync_modes)
def test_every_sample_once_and_no_micro_batch_over_its_cap(policy, lengths, ranks, cap, sync):
    step = {
        "table_or_lengths": lengths,
        "topology": Topology(ranks),
        "max_tokens": cap,
        "cost": COST,
        "sync": sync,
        "cp_degrees": (1,),
    }
    check(plan_step(policy=policy, **step), step)


def test_an_empty_step_is_a_plan_without_work():
    plan = plan_step([], topology=Topology(3), max_tokens=10, cost=COST)
    assert len(plan.micro_batches) == 0
    assert (plan.time_s, plan.gap, plan.imbalance) == (0.0, 0.0, 1.0)
