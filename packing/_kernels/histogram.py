"""Count how often each length occurs."""

import numpy as np

from packing._jit import kernel


@kernel
def histogram(lengths, capacity):
    """[capacity + 2] samples of each length; the last entry counts lengths outside 0..capacity.

    One 32-bit table: several interleaved tables hide no stall here and outgrow the first cache level.
    """
    outside = np.uint64(capacity + 1)
    count = np.zeros(capacity + 2, np.uint32)
    for i in range(lengths.shape[0]):
        count[min(np.uint64(lengths[i]), outside)] += np.uint32(1)
    return count
