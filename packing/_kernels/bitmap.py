"""A set of small integers as three levels of 64-bit words: a few instructions an operation."""

import numpy as np
from numba import uint64

from packing._jit import kernel
from packing._kernels.words import trailing_zeros


@kernel(inline="always")
def make_set(limit):
    """An empty set for 0..limit: bit i of level k + 1 says that word i of level k is not zero."""
    words0 = (limit >> 6) + 1
    words1 = (words0 >> 6) + 1
    words2 = (words1 >> 6) + 1
    return np.zeros(words0, np.uint64), np.zeros(words1, np.uint64), np.zeros(words2, np.uint64)


@kernel(inline="always")
def insert(bits0, bits1, bits2, value):
    """Add a value; it may be there already."""
    word = value >> 6
    bits0[word] |= uint64(1) << uint64(value & 63)
    bits1[word >> 6] |= uint64(1) << uint64(word & 63)
    bits2[word >> 12] |= uint64(1) << uint64((word >> 6) & 63)


@kernel(inline="always")
def remove(bits0, bits1, bits2, value):
    """Take a value out; it may be missing."""
    word = value >> 6
    bits0[word] &= ~(uint64(1) << uint64(value & 63))
    if bits0[word] == 0:
        bits1[word >> 6] &= ~(uint64(1) << uint64(word & 63))
        if bits1[word >> 6] == 0:
            bits2[word >> 12] &= ~(uint64(1) << uint64((word >> 6) & 63))


@kernel
def successor(bits0, bits1, bits2, value):
    """Smallest member that is at least ``value``, or -1."""
    word = value >> 6
    if word >= bits0.shape[0]:
        return np.int64(-1)
    found = bits0[word] & (~uint64(0) << uint64(value & 63))
    if found:
        return (word << 6) + np.int64(trailing_zeros(found))
    word += 1
    group = word >> 6
    if group >= bits1.shape[0]:
        return np.int64(-1)
    found = bits1[group] & (~uint64(0) << uint64(word & 63))
    if found == 0:
        group += 1
        block = group >> 6
        if block >= bits2.shape[0]:
            return np.int64(-1)
        upper = bits2[block] & (~uint64(0) << uint64(group & 63))
        while upper == 0:
            block += 1
            if block >= bits2.shape[0]:
                return np.int64(-1)
            upper = bits2[block]
        group = (block << 6) + np.int64(trailing_zeros(upper))
        found = bits1[group]
    word = (group << 6) + np.int64(trailing_zeros(found))
    return (word << 6) + np.int64(trailing_zeros(bits0[word]))
