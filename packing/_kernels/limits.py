"""Best fit and next fit where a pack has further limits beside its tokens."""

import numpy as np

from packing._jit import kernel
from packing._kernels.bitmap import insert, make_set, remove, successor

MOST_TRIES = 64  # packs that a sample looks at before it opens one; more than that gains nothing measurable


@kernel
def best_fit_limits(order, lengths, second, places, capacity, max_second, max_samples, ids):
    """Samples, in ``order``, into the pack with the least room that has what else they need, too.

    second, places: [S] what each needs of ``max_second`` and of ``max_samples``. Writes the pack ids of the
    samples in ``order``; returns the number of packs.
    """
    bits0, bits1, bits2 = make_set(capacity)
    top = np.full(capacity + 1, -1, np.int32)
    size = 1024
    packs = np.empty((5, size), np.int64)  # room, second left, places left, below, above
    num_packs = 0
    for i in order:
        length = np.int64(lengths[i])
        pack = np.int64(-1)
        residual = successor(bits0, bits1, bits2, length)
        tries = 0
        while residual >= 0 and pack < 0 and tries < MOST_TRIES:
            candidate = np.int64(top[residual])
            while candidate >= 0 and tries < MOST_TRIES:
                tries += 1
                if packs[1, candidate] >= second[i] and packs[2, candidate] >= places[i]:
                    pack = candidate
                    break
                candidate = packs[3, candidate]
            if pack < 0:
                residual = successor(bits0, bits1, bits2, residual + 1)
        if pack < 0:
            if num_packs == size:
                more = np.empty((5, 2 * size), np.int64)
                more[:, :size] = packs
                packs = more
                size *= 2
            pack = num_packs
            num_packs += 1
            packs[0, pack] = capacity
            packs[1, pack] = max_second
            packs[2, pack] = max_samples
        else:
            below = packs[3, pack]
            above = packs[4, pack]
            if below >= 0:
                packs[4, below] = above
            if above >= 0:
                packs[3, above] = below
            else:
                top[residual] = below
                if below < 0:
                    remove(bits0, bits1, bits2, residual)
        ids[i] = pack
        packs[0, pack] -= length
        packs[1, pack] -= second[i]
        packs[2, pack] -= places[i]
        residual = packs[0, pack]
        if residual > 0 and packs[2, pack] > 0:
            below = np.int64(top[residual])
            packs[3, pack] = below
            packs[4, pack] = -1
            if below >= 0:
                packs[4, below] = pack
            else:
                insert(bits0, bits1, bits2, residual)
            top[residual] = pack
    return num_packs


@kernel
def next_fit_limits(lengths, second, places, capacity, max_second, max_samples, ids):
    """One open pack; writes the pack id of each sample, -1 for empty ones; returns the number of packs."""
    pack = -1
    room = np.int64(-1)
    left = np.int64(-1)
    free = np.int64(-1)
    for i in range(lengths.shape[0]):
        if lengths[i] == 0:
            ids[i] = -1
            continue
        if lengths[i] > room or second[i] > left or places[i] > free:
            pack += 1
            room = np.int64(capacity)
            left = np.int64(max_second)
            free = np.int64(max_samples)
        room -= lengths[i]
        left -= second[i]
        free -= places[i]
        ids[i] = pack
    return pack + 1
