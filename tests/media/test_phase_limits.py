import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer import CostModel, Topology
from balancer.phases import Phase, plan_phases
from packing.table import SampleTable

COST = CostModel(linear=1e-6, quadratic=0.0, fixed=1e-5)


def table_of(tokens, patches, frames):
    plain = SampleTable.from_lengths(np.array(tokens, np.int64))
    return SampleTable(
        num_tokens=plain.num_tokens,
        source=plain.source,
        row=plain.row,
        start=plain.start,
        num_loss_tokens=plain.num_loss_tokens,
        phases={"vision": np.array(patches, np.int64), "audio": np.array(frames, np.int64)},
    )


samples = st.lists(
    st.tuples(st.integers(1, 60), st.sampled_from([0, 0, 7, 40, 50]), st.sampled_from([0, 0, 3, 20])),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60)
@given(
    sample=samples,
    ranks=st.integers(1, 4),
    sync=st.sampled_from(["step", "micro_batch"]),
    degrees=st.sampled_from([(1,), (1, 2)]),
)
def test_u26_no_micro_batch_passes_a_limit_of_an_encoder(sample, ranks, sync, degrees):
    tokens, patches, frames = zip(*sample, strict=True)
    plan = plan_phases(
        table_of(tokens, patches, frames),
        topology=Topology(ranks=ranks),
        max_tokens=100,
        cost=COST,
        phases={"vision": Phase(cost=COST, max_units=52), "audio": Phase(cost=COST, max_units=24)},
        mode="joint",
        sync=sync,
        cp_degrees=tuple(degree for degree in degrees if degree <= ranks),
    )
    batches = plan.language.micro_batches
    assert sorted(batches.order.tolist()) == list(range(len(tokens)))
    for m in range(len(batches)):
        members, degree = batches.samples(m), int(batches.cp_degree[m])
        assert np.array(tokens)[members].sum() <= 100 * degree
        assert np.array(patches)[members].sum() <= 52 * degree
        assert np.array(frames)[members].sum() <= 24 * degree
    # a rank is in one micro-batch of a slot at a time
    places = [
        (int(slot), rank)
        for slot, first, degree in zip(batches.slot, batches.first_rank, batches.cp_degree, strict=True)
        for rank in range(first, first + degree)
    ]
    assert len(set(places)) == len(places)
    if sync == "micro_batch":
        assert plan.language.num_slots == int(batches.slot.max()) + 1


def test_a_sample_beyond_the_limit_is_refused_with_a_sentence():
    with pytest.raises(ValueError, match="a micro-batch on 1 ranks holds 52 tokens, row 1 has 60"):
        plan_phases(
            table_of([10, 10], [9, 60], [0, 0]),
            topology=Topology(ranks=1),
            max_tokens=100,
            cost=COST,
            phases={"vision": Phase(cost=COST, max_units=52), "audio": COST},
            mode="joint",
        )
