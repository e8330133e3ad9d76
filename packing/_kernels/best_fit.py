"""Best-fit decreasing where equal samples, and packs in equal state, move together."""

import numpy as np
from numba import uint64

from packing._jit import kernel
from packing._kernels.bitmap import make_set
from packing._kernels.histogram import SPREAD
from packing._kernels.words import trailing_zeros

# The dealing cursors hold a pack id and a 32-bit fraction in one word; a run of q packs with m samples
# each is exact while q * m * m stays below 2**32 (see deal.py).
MAX_PER_PACK = 65535
FRACTION = 1 << 32
# Up to this capacity a table of residuals is filled in 0.1 ms; above it, a map of those in use is cheaper.
MOST_RESIDUALS = 1 << 18


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
    dense = capacity <= MOST_RESIDUALS
    room = 4 * values.shape[0] + 1024
    while True:
        slots = 1024
        while slots < room:
            slots *= 2
        bits0, bits1, bits2 = make_set(capacity)
        keys = np.full(1 if dense else slots, -1, np.int64)
        top = np.full(capacity + 1 if dense else slots, -1, np.int32)
        value = np.empty(room, np.int32)
        first = np.empty(room, np.int64)
        packs = np.empty(room, np.int64)
        per_pack = np.empty(room, np.int32)
        before = np.empty(room, np.int32)
        below = np.empty(room, np.int32)
        used = np.empty(room, np.int64)
        k, num_packs = fill_runs(
            values, counts, capacity, max_samples, bits0, bits1, bits2, keys, top,
            value, first, packs, per_pack, before, below, used,
        )  # fmt: skip
        if k >= 0:
            break
        room *= 4
    return value[:k], first[:k], packs[:k], per_pack[:k], before[:k], num_packs


@kernel
def fill_runs(
    values, counts, capacity, max_samples, bits0, bits1, bits2, keys, top,
    value, first, packs, per_pack, before, below, used,
):  # fmt: skip
    """The work of ``best_fit`` in tables of fixed size. Returns the number of runs, -1 if they do not fit.

    below: next run on the same residual's stack; used: packs of a run that later runs have taken over.
    No array is replaced in the loop and the set of residuals (``bitmap.py``) is written out: numba counts
    references otherwise, which made a run cost 300 ns in place of a fifth of that.
    """
    dense = keys.shape[0] == 1
    mask = uint64(keys.shape[0] - 1)
    free = keys.shape[0] // 2
    num_packs = np.int64(0)
    k = 0
    for v in range(values.shape[0]):
        length = np.int64(values[v])
        waiting = np.int64(counts[v])
        while waiting > 0:
            if k == value.shape[0] or (free == 0 and not dense):
                return -1, num_packs
            # The smallest residual of at least this length, or -1.
            residual = np.int64(-1)
            word = uint64(length) >> uint64(6)
            found = bits0[word] & (~uint64(0) << (uint64(length) & uint64(63)))
            if found == 0:
                upper = (word + uint64(1)) >> uint64(6)
                found = uint64(0)
                if upper < uint64(bits1.shape[0]):
                    found = bits1[upper] & (~uint64(0) << ((word + uint64(1)) & uint64(63)))
                if found == 0:
                    block = (upper + uint64(1)) >> uint64(6)
                    shift = (upper + uint64(1)) & uint64(63)
                    while block < uint64(bits2.shape[0]):
                        found = bits2[block] & (~uint64(0) << shift)
                        if found != 0:
                            upper = (block << uint64(6)) + trailing_zeros(found)
                            found = bits1[upper]
                            break
                        block += uint64(1)
                        shift = uint64(0)
                if found != 0:
                    word = (upper << uint64(6)) + trailing_zeros(found)
                    found = bits0[word]
            if found != 0:
                residual = np.int64((word << uint64(6)) + trailing_zeros(found))
            slot = uint64(0)
            if residual < 0:
                parent = np.int64(-1)
                residual = np.int64(capacity)
                available = waiting
                inside = np.int64(0)
            else:
                slot = uint64(residual)
                if not dense:
                    slot = ((slot * uint64(SPREAD)) >> uint64(32)) & mask
                    while keys[slot] != residual:
                        slot = (slot + uint64(1)) & mask
                parent = np.int64(top[slot])
                available = packs[parent] - used[parent]
                inside = np.int64(before[parent]) + np.int64(per_pack[parent])
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
                    if below[parent] < 0:
                        word = uint64(residual) >> uint64(6)
                        bits0[word] &= ~(uint64(1) << (uint64(residual) & uint64(63)))
                        if bits0[word] == 0:
                            upper = word >> uint64(6)
                            bits1[upper] &= ~(uint64(1) << (word & uint64(63)))
                            if bits1[upper] == 0:
                                bits2[upper >> uint64(6)] &= ~(uint64(1) << (upper & uint64(63)))
            value[k] = v
            packs[k] = q
            per_pack[k] = m
            before[k] = inside
            used[k] = 0
            residual -= m * length
            if residual > 0 and inside + m < max_samples:
                slot = uint64(residual)
                if not dense:
                    slot = ((slot * uint64(SPREAD)) >> uint64(32)) & mask
                    while keys[slot] != residual and keys[slot] >= 0:
                        slot = (slot + uint64(1)) & mask
                    if keys[slot] < 0:
                        keys[slot] = residual
                        free -= 1
                below[k] = top[slot]
                top[slot] = k
                if below[k] < 0:
                    word = uint64(residual) >> uint64(6)
                    bits0[word] |= uint64(1) << (uint64(residual) & uint64(63))
                    bits1[word >> uint64(6)] |= uint64(1) << (word & uint64(63))
                    bits2[word >> uint64(12)] |= uint64(1) << ((word >> uint64(6)) & uint64(63))
            k += 1
    return k, num_packs
