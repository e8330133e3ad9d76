"""A second cap: how many samples a micro-batch may hold. Those with more are cut into parts."""

from __future__ import annotations

import numpy as np

from balancer.planning.counts import check_count
from balancer.planning.layout import Layout, layout_of
from balancer.planning.problem import Ints


def at_most(layout: Layout, max_samples: int) -> Layout:
    """The layout with micro-batches of more than ``max_samples`` samples cut, on the ranks that had them.

    A rank keeps its samples, so under ``sync="step"`` only fixed costs are added. All parts of a slot come
    before the next slot.

    Cost: O(S log S) where something is cut, O(M) otherwise.
    """
    counts = np.diff(layout.offsets)
    parts = -(-counts // max_samples)
    if counts.max(initial=0) <= max_samples:
        return layout
    batch_of: Ints = np.empty(layout.order.size, np.int64)
    batch_of[layout.order] = np.repeat(np.arange(counts.size), counts)
    part_of = dealt(batch_of, np.arange(batch_of.size), max_samples)
    first_part = np.cumsum(parts) - parts  # [M]
    whole = np.repeat(np.arange(counts.size), parts)  # [M'] what each part was cut from
    part = np.arange(whole.size) - first_part[whole]
    slot = None if layout.slot is None else slots_of_parts(layout.slot, parts)[whole] + part
    return layout_of(
        first_part[batch_of] + part_of,
        layout.first_rank[whole],
        layout.cp_degree[whole],
        slot,
        layout.to_longest,
    )


def dealt(batch_of: Ints, by_length: Ints, max_samples: int) -> Ints:
    """[S] part of each sample within its micro-batch: dealt out in turns there and back, longest first.

    So parts differ by at most one sample, and little in tokens.

    Args:
        batch_of: [S] micro-batch of each sample.
        by_length: [S] samples by falling length.
        max_samples: samples that a part may hold.
    """
    counts = np.bincount(batch_of)
    parts = np.maximum(-(-counts // max_samples), 1)
    grouped = by_length[np.argsort(batch_of[by_length], kind="stable")]
    turn = np.arange(grouped.size) - np.repeat(np.cumsum(counts) - counts, counts)
    of = parts[batch_of[grouped]]
    there, back = turn % (2 * of), 2 * of - 1 - turn % (2 * of)
    part_of: Ints = np.empty(batch_of.size, np.int64)
    part_of[grouped] = np.minimum(there, back)
    return part_of


def slots_of_parts(slot: Ints, parts: Ints) -> Ints:
    """[M] first slot of each micro-batch's parts, when every slot becomes as many as its most parts."""
    width = np.zeros(int(slot.max(initial=-1)) + 1, np.int64)
    np.maximum.at(width, slot, parts)
    first: Ints = (np.cumsum(width) - width)[slot]
    return first


def check_max_samples(max_samples: int) -> int:
    """Raises ValueError unless it is a whole number of at least 1."""
    return check_count("max_samples", max_samples, or_none=True)
