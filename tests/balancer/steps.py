"""Steps that some plan can hold, for Hypothesis: every option of the planner."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from balancer import CostModel, Topology, plan_step
from balancer.cost import Communication


def room_of_groups(ranks_per_node, degrees, caps):
    """(pieces that a sample is cut into, tokens of the roomiest group) of each degree."""
    topology = Topology(len(caps), ranks_per_node)
    return [
        (2 * d if d > 1 else 1, max(d * min(caps[s : s + d]) for s in topology.group_starts(d).tolist()))
        for d in degrees
    ]


@st.composite
def steps(draw, most_ranks=9, most_samples=50, most_degrees=4):
    ranks = draw(st.integers(1, most_ranks))
    degrees = sorted(draw(st.sets(st.integers(1, ranks), min_size=1, max_size=most_degrees)))
    unequal = draw(st.booleans())
    caps = draw(st.lists(st.integers(1, 1500), min_size=ranks, max_size=ranks)) if unequal else None
    cap = draw(st.integers(100, 1500))
    ranks_per_node = draw(st.none() | st.integers(1, ranks))
    rooms = room_of_groups(ranks_per_node, degrees, caps or [cap] * ranks)
    longest = max(room // pieces * pieces for pieces, room in rooms)
    topology = Topology(
        ranks,
        ranks_per_node=ranks_per_node,
        speed=draw(st.none() | st.lists(st.sampled_from([0.5, 1.0, 1.25]), min_size=ranks, max_size=ranks)),
        pipeline_stages=draw(st.sampled_from([1, 1, 3])),
    )
    link = None
    if draw(st.booleans()):
        link = Communication(
            bytes_per_token=1e5,
            intra_node=1e10,
            inter_node=1e9,
            latency_s=draw(st.sampled_from([0.0, 1e-3])),
            overlap=draw(st.sampled_from([0.0, 0.5])),
        )
    cost = CostModel(
        linear=2e-4,
        quadratic=draw(st.sampled_from([0.0, 1e-6])),
        fixed=draw(st.sampled_from([0.0, 0.02])),
        communication=link,
    )
    lengths = draw(st.lists(st.integers(1, longest), max_size=most_samples)) if longest else []
    return {
        "table_or_lengths": np.array(lengths, np.int64),
        "topology": topology,
        "max_tokens": caps if caps else cap,
        "cost": cost,
        "cp_degrees": tuple(degrees),
        "sync": draw(st.sampled_from(["step", "micro_batch"])),
    }


def plan_or_refusal(word, **step):
    """The plan, or None where the planner refuses in a sentence that names ``word``."""
    try:
        return plan_step(**step)
    except ValueError as error:
        if word not in str(error):
            raise
        return None
