"""The planning problem as an integer program, solved by HiGHS: shares no code with the planner."""

from __future__ import annotations

from itertools import product

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array


def least_time_s(
    lengths, *, topology, max_tokens, cost, cp_degrees, sync, micro_batches, limit_s=20.0, with_bound=False
):
    """Seconds of the best plan with at most that many micro-batches a group (slots under micro_batch).

    Columns: x[s, b] sample s in micro-batch b = (group, number); y[b] micro-batch used; z the step time, or
    the height of each slot. Groups start at multiples of their degree; powers of two are nested.
    """
    ranks, samples = topology.ranks, len(lengths)
    groups = [(first, d) for d in cp_degrees for first in range(0, ranks - d + 1, d)]
    batches = list(product(groups, range(micro_batches)))
    time = {d: cost.nanoseconds(lengths, d) * 1e-9 for d in cp_degrees}
    fixed = {d: cost.fixed_nanoseconds(d) * 1e-9 for d in cp_degrees}
    tokens = {d: lengths if d == 1 else -(-lengths // (2 * d)) * 2 * d for d in cp_degrees}
    heights = 1 if sync == "step" else micro_batches
    columns = (samples + 1) * len(batches) + heights
    x = np.arange(samples * len(batches)).reshape(samples, len(batches))
    y = samples * len(batches) + np.arange(len(batches))
    z = columns - heights + np.arange(heights)
    rows, low, high = [], [], []

    def add(terms, at_least, at_most):
        rows.append(terms)
        low.append(at_least)
        high.append(at_most)

    for s in range(samples):
        add([(x[s, b], 1.0) for b in range(len(batches))], 1, 1)
    for b, ((_, d), _) in enumerate(batches):
        add(
            [(x[s, b], float(tokens[d][s])) for s in range(samples)] + [(y[b], -float(d * max_tokens))],
            -np.inf,
            0,
        )
        for s in range(samples):
            add([(x[s, b], 1.0), (y[b], -1.0)], -np.inf, 0)

    def work(b, d):
        return [(x[s, b], time[d][s]) for s in range(samples)] + [(y[b], fixed[d])]

    for rank in range(ranks):
        here = [b for b, ((first, d), _) in enumerate(batches) if first <= rank < first + d]
        if sync == "step":
            terms = [term for b in here for term in work(b, batches[b][0][1])]
            add([*terms, (z[0], -1.0)], -np.inf, 0)
        for slot in range(micro_batches) if sync == "micro_batch" else ():
            add([(y[b], 1.0) for b in here if batches[b][1] == slot], -np.inf, 1)
    if sync == "micro_batch":
        for b, ((_, d), slot) in enumerate(batches):
            add([*work(b, d), (z[slot], -1.0)], -np.inf, 0)
        for slot in range(micro_batches - 1):
            add([(z[slot], 1.0), (z[slot + 1], -1.0)], 0, np.inf)
    index = [(i, column, value) for i, terms in enumerate(rows) for column, value in terms]
    i, j, value = (np.array(part) for part in zip(*index, strict=True))
    matrix = coo_array((value, (i, j)), shape=(len(rows), columns)).tocsr()
    objective = np.zeros(columns)
    objective[z] = 1.0
    integral = np.ones(columns)
    integral[z] = 0
    most = np.ones(columns)
    most[z] = np.inf
    result = milp(
        objective,
        constraints=LinearConstraint(matrix, low, high),
        integrality=integral,
        bounds=Bounds(np.zeros(columns), most),
        options={"time_limit": limit_s, "mip_rel_gap": 1e-4},
    )
    if result.x is None:
        return (None, None) if with_bound else None
    return (result.fun, result.mip_dual_bound) if with_bound else result.fun
