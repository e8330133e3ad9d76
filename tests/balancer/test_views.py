import gzip
import io
import json
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from rich.console import Console

from balancer import CostModel, StepPlan, Topology, plan_step
from balancer.plan import MicroBatches
from balancer.views.timeline import rank_sums, timeline
from balancer.views.trace import trace_plans

COST = CostModel(2e-4, 1e-8, 0.05)


def plan_of(lengths, *, ranks=4, **options):
    return plan_step(lengths, topology=Topology(ranks=ranks), max_tokens=4096, cost=COST, **options)


def nested_plan():
    """Eight ranks: one micro-batch on all, then two on halves, then smaller ones; rank 7 idles at the end."""
    first_rank = np.array([0, 0, 4, 0, 2, 4, 5, 6], dtype=np.int32)
    cp_degree = np.array([8, 4, 4, 2, 2, 1, 1, 1], dtype=np.int32)
    batches = MicroBatches(
        first_rank=first_rank,
        cp_degree=cp_degree,
        slot=np.array([0, 1, 1, 2, 2, 2, 2, 2], dtype=np.int32),
        tokens=np.arange(8, dtype=np.int64) * 100 + 800,
        cost_s=np.array([1.0, 0.6, 0.5, 0.4, 0.3, 0.5, 0.6, 0.2]),
        order=np.arange(8, dtype=np.int64)[::-1].copy(),
        offsets=np.arange(9, dtype=np.int64),
    )
    busy = np.array([2.0, 2.0, 1.9, 1.9, 2.0, 2.1, 1.7, 1.5])
    return StepPlan(
        micro_batches=batches,
        ranks=8,
        sync="step",
        num_slots=3,
        rank_time_s=busy,
        time_s=2.1,
        lower_bound_s=1.9,
    )


plans = st.builds(
    plan_of,
    st.lists(st.integers(1, 4096), max_size=30),
    ranks=st.integers(1, 9),
    sync=st.sampled_from(["step", "micro_batch"]),
)


def assert_equal_plans(a, b):
    for field in fields(StepPlan):
        if field.name == "micro_batches":
            for inner in fields(MicroBatches):
                left, right = getattr(a.micro_batches, inner.name), getattr(b.micro_batches, inner.name)
                assert left.dtype == right.dtype
                np.testing.assert_array_equal(left, right)
        else:
            np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))
    assert a.digest() == b.digest()


@given(plans)
def test_bytes_and_json_give_back_every_bit(plan):
    assert_equal_plans(StepPlan.from_bytes(plan.to_bytes()), plan)
    assert_equal_plans(StepPlan.from_json(plan.to_json()), plan)
    assert StepPlan.from_bytes(plan.to_bytes()).to_bytes() == plan.to_bytes()


@given(plans, st.integers(0, 10**9), st.integers(1, 255))
def test_a_changed_or_cut_byte_is_noticed(plan, position, flip):
    data = bytearray(plan.to_bytes())
    data[position % len(data)] ^= flip
    with pytest.raises(ValueError, match="plan"):
        StepPlan.from_bytes(bytes(data))
    with pytest.raises(ValueError, match="plan"):
        StepPlan.from_bytes(plan.to_bytes()[: position % len(data)])


def test_plans_of_another_version_or_kind_are_refused():
    data = plan_of([5]).to_bytes()
    with pytest.raises(ValueError, match="version 1 is needed, got version 9"):
        StepPlan.from_bytes(data[:6] + (9).to_bytes(2, "little") + data[8:])
    with pytest.raises(ValueError, match="version 1 is needed, got version 9"):
        StepPlan.from_json(plan_of([5]).to_json().replace('"version": 1', '"version": 9'))
    with pytest.raises(ValueError, match="other fields"):
        StepPlan.from_json(plan_of([5]).to_json().replace('"ranks"', '"workers"'))
    for text in ("{}", "[]", "plan", '{"version": 1}'):
        with pytest.raises(ValueError, match="not a plan"):
            StepPlan.from_json(text)


@given(plans)
def test_a_rank_does_one_thing_at_a_time_and_all_of_its_work(plan):
    spans = timeline(plan)
    for rank in range(plan.ranks):
        mine = spans.rank == rank
        assert spans.micro_batch[mine].tolist() == plan.for_rank(rank).tolist()
        assert np.all(spans.start_s[mine][1:] >= spans.end_s[mine][:-1] - 1e-12)
        assert np.sum(spans.end_s[mine] - spans.start_s[mine]) == pytest.approx(
            plan.rank_time_s[rank], abs=1e-6
        )
    assert spans.end_s.max(initial=0.0) == pytest.approx(plan.time_s, abs=1e-6)


def test_a_group_starts_together_when_its_last_rank_is_free():
    spans = timeline(nested_plan())
    starts = {int(m): spans.start_s[spans.micro_batch == m] for m in range(8)}
    assert all(np.ptp(start) == 0 for start in starts.values())
    np.testing.assert_allclose([start[0] for start in starts.values()], [0, 1, 1, 1.6, 1.6, 1.5, 1.5, 1.5])


def test_ranks_that_meet_in_every_slot_start_it_together():
    plan = plan_of([4000, 3000, 2000, 1000] * 4, sync="micro_batch")
    spans = timeline(plan)
    slot = plan.micro_batches.slot[spans.micro_batch]
    for k in range(plan.num_slots):
        assert np.ptp(spans.start_s[slot == k]) == 0


def test_rank_sums_count_a_shared_micro_batch_on_each_of_its_ranks():
    plan = nested_plan()
    expected = [plan.micro_batches.cost_s[plan.for_rank(rank)].sum() for rank in range(8)]
    np.testing.assert_allclose(rank_sums(plan, plan.micro_batches.cost_s), expected)


def printed(renderable):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_the_table_has_a_row_for_each_rank_and_says_how_far_from_the_bound():
    text = printed(nested_plan().table())
    rows = [line for line in text.splitlines() if line.startswith("│")]
    assert len(rows) == 8
    assert "gap 10.53%" in text
    assert "degree 8: 1 of 8 micro-batches" in text


def test_the_table_of_many_ranks_shows_the_slowest_and_the_fastest():
    plan = plan_of(list(range(1, 400)), ranks=100)
    text = printed(plan.table(max_ranks=6))
    rows = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert len(rows) == 7
    assert rows[3] == "..."
    assert int(rows[0]) == int(np.argmax(plan.rank_time_s))


def test_an_empty_step_can_be_shown():
    plan = plan_of([])
    assert "empty step" in printed(plan.table())
    assert [event for event in plan.trace()["traceEvents"] if event["ph"] == "X"] == []
    plan.plot()


def test_the_picture_draws_every_micro_batch_on_every_rank_of_its_group(tmp_path):
    plan = nested_plan()
    figure = plan.plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 5000
    axes = figure.axes[0]
    boxes = sum(len(each.get_paths()) for each in axes.collections if isinstance(each, PolyCollection))
    assert boxes == plan.micro_batches.cp_degree.sum()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["degree 1", "degree 2", "degree 4", "degree 8", "idle", "end of step", "bound"]


def test_the_trace_holds_each_bar_as_a_complete_event(tmp_path):
    plan = nested_plan()
    trace = plan.trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text()) == trace
    bars = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(bars) == plan.micro_batches.cp_degree.sum()
    assert all(bar["dur"] > 0 for bar in bars)
    busy_us = [sum(bar["dur"] for bar in bars if bar["tid"] == rank) for rank in range(8)]
    np.testing.assert_allclose(busy_us, plan.rank_time_s * 1e6)
    named = {
        event["tid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert named == {rank: f"rank {rank}" for rank in range(8)}


def test_steps_follow_each_other_in_one_trace(tmp_path):
    plan = nested_plan()
    trace = trace_plans([plan, replace(plan, policy="again")], tmp_path / "trace.json.gz")
    with gzip.open(tmp_path / "trace.json.gz", "rt") as file:
        assert json.load(file) == trace
    second = [
        event["ts"] for event in trace["traceEvents"] if event["ph"] == "X" and event["args"]["step"] == 1
    ]
    assert min(second) == pytest.approx(plan.time_s * 1e6)


def test_planning_loads_neither_rich_nor_matplotlib():
    code = (
        "import sys; from balancer import *; "
        "plan_step([5, 6], topology=Topology(ranks=2), max_tokens=10, cost=CostModel(1.0)).to_bytes(); "
        "sys.exit(any(name in sys.modules for name in ('rich', 'matplotlib', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("ranks",), "two"),
        (("time_s",), None),
        (("rank_time_s",), 3),
        (("columns", "rank_time_s", "dtype"), "object"),
        (("columns", "micro_batches.order", "dtype"), "int8"),
        (("columns", "micro_batches.order", "values"), [[0]]),
    ],
)
def test_json_with_fields_of_other_types_is_refused(path, value):
    data = json.loads(plan_of([5]).to_json())
    if path == ("rank_time_s",):
        del data["columns"]["rank_time_s"]
    owner = data
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = value
    with pytest.raises(ValueError, match="not a plan"):
        StepPlan.from_json(json.dumps(data))
