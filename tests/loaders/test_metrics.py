"""Sums over the steps that were given out."""

from hypothesis import given
from hypothesis import strategies as st

from balancer import CostModel, Topology, plan_step
from loaders.metrics import by_degree


@given(lengths=st.lists(st.integers(1, 100), max_size=12), ranks=st.sampled_from([1, 4]))
def test_degrees_of_a_step_are_those_of_its_micro_batches(lengths, ranks):
    degrees = [degree for degree in (1, 2, 4) if degree <= ranks]
    cost = CostModel(linear=1e-3, quadratic=1e-4)
    plan = plan_step(
        lengths, topology=Topology(ranks), max_tokens=104, cost=cost, cp_degrees=degrees, effort=0
    )
    batches = plan.micro_batches
    expected = {}
    for degree, tokens in zip(batches.cp_degree.tolist(), batches.tokens.tolist(), strict=True):
        count, most = expected.get(degree, (0, 0))
        expected[degree] = count + 1, max(most, tokens)
    assert {degree: (count, most) for degree, count, most in by_degree(batches)} == expected
