"""Packs of nearly equal cost under a token cap: deal to the cheapest pack with room, then exchange."""

import numpy as np

from packing._jit import kernel
from packing._kernels.bitmap import insert, make_set, remove, successor

CLASSES = 64
MOST_MEMBERS = 256  # samples of a pack that an exchange looks at
MOST_PARTNERS = 400


@kernel(inline="always")
def room_class(room, capacity):
    """Class of a pack by its room, CLASSES - 1 for an empty one."""
    return (room * (CLASSES - 1)) // capacity


@kernel
def push(heap, size, cost, pack, version):
    """Add an entry to a binary min-heap of (cost, pack, version) rows; ties by pack. Returns the heap."""
    if size == heap.shape[0]:
        more = np.empty((2 * size, 3))
        more[:size] = heap
        heap = more
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if heap[up, 0] < cost or (heap[up, 0] == cost and heap[up, 1] <= pack):
            break
        heap[i] = heap[up]
        i = up
    heap[i, 0] = cost
    heap[i, 1] = pack
    heap[i, 2] = version
    return heap


@kernel
def pop(heap, size):
    """Take the smallest of ``size`` entries away; the rest stays a heap."""
    size -= 1
    cost = heap[size, 0]
    pack = heap[size, 1]
    version = heap[size, 2]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        if down + 1 < size and (
            heap[down + 1, 0] < heap[down, 0]
            or (heap[down + 1, 0] == heap[down, 0] and heap[down + 1, 1] < heap[down, 1])
        ):
            down += 1
        if cost < heap[down, 0] or (cost == heap[down, 0] and pack <= heap[down, 1]):
            break
        heap[i] = heap[down]
        i = down
    heap[i, 0] = cost
    heap[i, 1] = pack
    heap[i, 2] = version


@kernel
def deal_cheapest(order, lengths, cost, num_packs, capacity, max_samples, ids):
    """Give samples, in ``order``, to the cheapest pack with room. Returns: all found one; room; samples.

    Packs stand in heaps by class of room, so that one look at each class finds the cheapest: the whole
    classes above the sample's length, and only where those are empty the packs of its own class one by one.
    Entries of packs that have changed since are told by their version and thrown away when they surface.
    """
    room = np.full(num_packs, capacity, np.int64)
    samples = np.zeros(num_packs, np.int64)
    load = np.zeros(num_packs)
    version = np.zeros(num_packs, np.int64)
    heaps = [np.empty((16, 3)) for _ in range(CLASSES)]
    size = np.zeros(CLASSES, np.int64)
    start = np.zeros((num_packs, 3))
    start[:, 1] = np.arange(num_packs)
    heaps[CLASSES - 1] = start
    size[CLASSES - 1] = num_packs
    for i in order:
        length = lengths[i]
        lowest = room_class(length, capacity)
        chosen = -1
        for c in range(CLASSES - 1, lowest - 1, -1):
            heap = heaps[c]
            while size[c] > 0 and version[np.int64(heap[0, 1])] != np.int64(heap[0, 2]):
                pop(heap, size[c])
                size[c] -= 1
            if size[c] > 0:
                pack = np.int64(heap[0, 1])
                better = chosen < 0 or load[pack] < load[chosen]
                if better and room[pack] >= length:
                    chosen = pack
        if chosen < 0:
            for e in range(size[lowest]):
                pack = np.int64(heaps[lowest][e, 1])
                current = version[pack] == np.int64(heaps[lowest][e, 2])
                if current and room[pack] >= length and (chosen < 0 or load[pack] < load[chosen]):
                    chosen = pack
            if chosen < 0:
                return False, room, samples
        ids[i] = chosen
        room[chosen] -= length
        load[chosen] += cost[i]
        samples[chosen] += 1
        version[chosen] += 1
        if samples[chosen] < max_samples and room[chosen] > 0:
            c = room_class(room[chosen], capacity)
            heaps[c] = push(heaps[c], size[c], load[chosen], chosen, version[chosen])
            size[c] += 1
    return True, room, samples


@kernel
def fill_tightest(order, lengths, room, samples, capacity, max_samples, ids):
    """Give samples, in ``order``, to the pack they leave the least room in. Returns whether all found one."""
    bits0, bits1, bits2 = make_set(capacity)
    top = np.full(capacity + 1, -1, np.int32)
    below = np.full(room.shape[0], -1, np.int32)
    for p in range(room.shape[0]):
        if room[p] > 0 and samples[p] < max_samples:
            below[p] = top[room[p]]
            top[room[p]] = p
            insert(bits0, bits1, bits2, room[p])
    for i in order:
        residual = successor(bits0, bits1, bits2, np.int64(lengths[i]))
        if residual < 0:
            return False
        p = top[residual]
        ids[i] = p
        top[residual] = below[p]
        if top[residual] < 0:
            remove(bits0, bits1, bits2, residual)
        samples[p] += 1
        residual -= lengths[i]
        if residual > 0 and samples[p] < max_samples:
            below[p] = top[residual]
            top[residual] = p
            insert(bits0, bits1, bits2, residual)
    return True


@kernel
def even_out(ids, lengths, cost, num_packs, capacity, max_samples, target, work):
    """Exchange samples between the costliest pack and cheap ones until nothing lowers the maximum.

    Changes ``ids`` in place; returns the maximum. Stops at ``target``, or after ``work`` pairs of samples.
    """
    room = np.full(num_packs, capacity, np.int64)
    samples = np.zeros(num_packs, np.int64)
    load = np.zeros(num_packs)
    head = np.full(num_packs, -1, np.int64)
    following = np.full(ids.shape[0], -1, np.int64)
    for i in range(ids.shape[0] - 1, -1, -1):
        p = ids[i]
        if p >= 0:
            room[p] -= lengths[i]
            load[p] += cost[i]
            samples[p] += 1
            following[i] = head[p]
            head[p] = i
    by_load = np.argsort(load, kind="mergesort")
    union = np.empty(2 * MOST_MEMBERS, np.int64)
    side = np.empty(2 * MOST_MEMBERS, np.int8)
    heap = np.empty((num_packs, 3))
    size = 0
    version = np.zeros(num_packs, np.int64)
    for p in range(num_packs):
        heap = push(heap, size, -load[p], p, 0)
        size += 1
    partner_at = 0
    while work > 0 and size > 0:
        worst = np.int64(heap[0, 1])
        if version[worst] != np.int64(heap[0, 2]):
            pop(heap, size)
            size -= 1
            continue
        if load[worst] <= target:
            break
        found = False
        for attempt in range(min(num_packs, MOST_PARTNERS)):
            # The cheapest packs first, by an order that is renewed only now and then.
            other = by_load[(partner_at + attempt) % num_packs]
            if other == worst or load[other] >= load[worst] * (1 - 1e-9):
                continue
            give, take, pairs = best_swap(
                worst, other, lengths, cost, room, samples, load, head, following, max_samples
            )
            work -= pairs
            if give >= 0:
                relocate(give, worst, other, ids, lengths, cost, room, samples, load, head, following)
                if take >= 0:
                    relocate(take, other, worst, ids, lengths, cost, room, samples, load, head, following)
                found = True
            elif samples[worst] + samples[other] <= MOST_MEMBERS:
                work -= 8 * (samples[worst] + samples[other])
                found = redeal_pair(
                    worst,
                    other,
                    ids,
                    lengths,
                    cost,
                    room,
                    samples,
                    load,
                    head,
                    following,
                    capacity,
                    max_samples,
                    union,
                    side,
                )
            if found:
                for p in (worst, other):
                    version[p] += 1
                    heap = push(heap, size, -load[p], p, version[p])
                    size += 1
                partner_at = (partner_at + attempt + 1) % num_packs
                break
            if work <= 0:
                break
        if not found:
            break
        if partner_at >= max(1, num_packs // 4):
            by_load = np.argsort(load, kind="mergesort")
            work -= num_packs
            partner_at = 0
    return load.max()


@kernel
def best_swap(worst, other, lengths, cost, room, samples, load, head, following, max_samples):
    """The sample to give and the one to take back (-1: none) that bring two packs closest together."""
    half = (load[worst] - load[other]) / 2
    gap = half * (1 - 1e-6)  # of the moved cost from half; below half, the larger of the two falls
    give = np.int64(-1)
    take = np.int64(-1)
    pairs = 0
    i = head[worst]
    seen = 0
    while i >= 0 and seen < MOST_MEMBERS:
        seen += 1
        if abs(cost[i] - half) < gap and lengths[i] <= room[other] and samples[other] < max_samples:
            gap = abs(cost[i] - half)
            give = i
            take = np.int64(-1)
        j = head[other]
        met = 0
        while j >= 0 and met < MOST_MEMBERS:
            met += 1
            moved = abs(cost[i] - cost[j] - half)
            extra = np.int64(lengths[i]) - np.int64(lengths[j])
            if moved < gap and extra <= room[other] and -extra <= room[worst]:
                gap = moved
                give = i
                take = j
            j = following[j]
        pairs += met + 1
        i = following[i]
    return give, take, pairs


@kernel
def redeal_pair(
    worst, other, ids, lengths, cost, room, samples, load, head, following, capacity, max_samples, union, side
):
    """Deal two packs anew, costliest sample first to the cheaper one with room, if that is better."""
    count = 0
    for p in (worst, other):
        i = head[p]
        while i >= 0:
            j = count
            while j > 0 and cost[union[j - 1]] < cost[i]:
                union[j] = union[j - 1]
                j -= 1
            union[j] = i
            count += 1
            i = following[i]
    limit = load[worst] * (1 - 1e-6)
    cost0 = 0.0
    cost1 = 0.0
    room0 = np.int64(capacity)
    room1 = np.int64(capacity)
    samples0 = 0
    samples1 = 0
    for e in range(count):
        i = union[e]
        fits0 = lengths[i] <= room0 and samples0 < max_samples and cost0 + cost[i] < limit
        fits1 = lengths[i] <= room1 and samples1 < max_samples and cost1 + cost[i] < limit
        if fits0 and (cost0 <= cost1 or not fits1):
            side[e] = 0
            cost0 += cost[i]
            room0 -= lengths[i]
            samples0 += 1
        elif fits1:
            side[e] = 1
            cost1 += cost[i]
            room1 -= lengths[i]
            samples1 += 1
        else:
            return False
    for p in (worst, other):
        head[p] = -1
    for e in range(count - 1, -1, -1):
        p = worst if side[e] == 0 else other
        i = union[e]
        following[i] = head[p]
        head[p] = i
        ids[i] = p
    load[worst], load[other] = cost0, cost1
    room[worst], room[other] = room0, room1
    samples[worst], samples[other] = samples0, samples1
    return True


@kernel
def relocate(i, source, target, ids, lengths, cost, room, samples, load, head, following):
    """Move sample i from one pack's list to another's."""
    if head[source] == i:
        head[source] = following[i]
    else:
        j = head[source]
        while following[j] != i:
            j = following[j]
        following[j] = following[i]
    following[i] = head[target]
    head[target] = i
    ids[i] = target
    room[source] += lengths[i]
    room[target] -= lengths[i]
    samples[source] -= 1
    samples[target] += 1
    load[source] -= cost[i]
    load[target] += cost[i]
