"""Best-fit decreasing where equal samples, and packs in equal state, move together."""

import numpy as np

from packing._jit import kernel
from packing._kernels.bitmap import insert, make_set, remove, successor
from packing._kernels.lookup import slot_of, twice_as_many

# The dealing cursors hold a pack id and a 32-bit fraction in one word; a run of q packs with m samples
# each is exact while q * m * m stays below 2**32 (see deal.py).
MAX_PER_PACK = 65535
FRACTION = 1 << 32
# Up to this capacity a table of residuals is filled in 0.1 ms; above it, a map of those in use is cheaper.
MOST_RESIDUALS = 1 << 18


@kernel
def longer(column):
    """A copy of a column with twice the room."""
    bigger = np.empty(column.shape[0] * 2, column.dtype)
    bigger[: column.shape[0]] = column
    return bigger


@kernel
def best_fit(values, counts, capacity, max_samples):
    """Runs of an exact best-fit decreasing packing.

    values: descending lengths in 1..capacity; counts: samples of each. max_samples: most samples in a pack.
    Returns columns of the runs [K]: index into ``values``, first pack, packs, samples added to each of
    them, samples that were in them before; and the number of packs.

    A stack per residual holds runs of packs in the same state; the smallest residual that fits gives its
    top run. A pack that takes length s keeps a residual below s and below half of its old one, so it is
    touched at most log2(capacity) times: the cost does not depend on the number of samples.
    """
    bits0, bits1, bits2 = make_set(capacity)
    keys = np.full(0 if capacity <= MOST_RESIDUALS else 1024, -1, np.int64)
    top = np.full(capacity + 1 if capacity <= MOST_RESIDUALS else 1024, -1, np.int32)
    free = keys.shape[0] // 2
    room = max(1024, min(4 * values.shape[0], 1 << 18))
    value = np.empty(room, np.int32)
    first = np.empty(room, np.int64)
    packs = np.empty(room, np.int64)
    per_pack = np.empty(room, np.int32)
    before = np.empty(room, np.int32)
    below = np.empty(room, np.int32)  # next run on the same residual's stack
    used = np.empty(room, np.int64)  # packs of the run that later runs have taken over
    num_packs = 0
    k = 0
    for v in range(values.shape[0]):
        length = values[v]
        waiting = np.int64(counts[v])
        while waiting > 0:
            if k == value.shape[0]:
                value = longer(value)
                first = longer(first)
                packs = longer(packs)
                per_pack = longer(per_pack)
                before = longer(before)
                below = longer(below)
                used = longer(used)
            residual = successor(bits0, bits1, bits2, length)
            slot = np.int64(0)
            if residual < 0:
                parent = np.int32(-1)
                residual = np.int64(capacity)
                available = waiting
                inside = np.int64(0)
            else:
                slot = slot_of(keys, residual)
                parent = top[slot]
                available = packs[parent] - used[parent]
                inside = np.int64(before[parent]) + per_pack[parent]
            m = min(residual // length, waiting, max_samples - inside, MAX_PER_PACK)
            q = min(waiting // m, available, max(1, (FRACTION - 1) // (m * m)))
            waiting -= q * m
            if parent < 0:
                first[k] = num_packs
                num_packs += q
            else:
                first[k] = first[parent] + used[parent]
                used[parent] += q
                if used[parent] == packs[parent]:
                    top[slot] = below[parent]
                    if top[slot] < 0:
                        remove(bits0, bits1, bits2, residual)
            value[k] = v
            packs[k] = q
            per_pack[k] = m
            before[k] = inside
            used[k] = 0
            residual -= m * length
            if residual > 0 and inside + m < max_samples:
                slot = slot_of(keys, residual)
                if keys.shape[0] > 0 and keys[slot] < 0:
                    if free == 0:
                        free = keys.shape[0] // 2
                        keys, top = twice_as_many(keys, top)
                        slot = slot_of(keys, residual)
                    keys[slot] = residual
                    free -= 1
                below[k] = top[slot]
                if below[k] < 0:
                    insert(bits0, bits1, bits2, residual)
                top[slot] = k
            k += 1
    return value[:k], first[:k], packs[:k], per_pack[:k], before[:k], num_packs
