"""One open pack; the order is kept."""

from packing._jit import kernel


@kernel
def next_fit(lengths, capacity, max_samples, ids):
    """Write the pack id of each sample, -1 for empty ones. Returns the number of packs."""
    pack = -1
    room = 0
    places = 0
    for i in range(lengths.shape[0]):
        length = lengths[i]
        if length == 0:
            ids[i] = -1
            continue
        if length > room or places == 0:
            pack += 1
            room = capacity
            places = max_samples
        room -= length
        places -= 1
        ids[i] = pack
    return pack + 1
