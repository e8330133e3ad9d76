"""A map from integers of at least 0 to small integers: a table where that is small, else open addressing.

``keys`` is empty for a table, so that value v stands in slot v; else it has a power of two of entries, -1
for free ones, and at most half of them in use.
"""

import numpy as np
from numba import uint64

from packing._jit import kernel

# 2**64 / golden ratio: multiplying spreads neighbouring keys over the table (Knuth, volume 3, 6.4).
SPREAD = 0x9E3779B97F4A7C15


@kernel(inline="always")
def slot_of(keys, key):
    """Slot of a key; a free slot where it is new."""
    if keys.shape[0] == 0:
        return key
    mask = keys.shape[0] - 1
    slot = np.int64((uint64(key) * uint64(SPREAD)) >> uint64(32)) & mask
    while keys[slot] != key and keys[slot] >= 0:
        slot = (slot + 1) & mask
    return slot


@kernel
def twice_as_many(keys, content):
    """The same map with twice the slots."""
    bigger = np.full(keys.shape[0] * 2, -1, keys.dtype)
    moved = np.full(keys.shape[0] * 2, -1, content.dtype)
    for slot in range(keys.shape[0]):
        if keys[slot] >= 0:
            place = slot_of(bigger, np.int64(keys[slot]))
            bigger[place] = keys[slot]
            moved[place] = content[slot]
    return bigger, moved
