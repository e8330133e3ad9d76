"""Cases of people who pack training data, by their numbers: U09, U24."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from packing import STRATEGIES, pack

CAP = 131_072


def test_u09_a_million_lengths_pack_near_their_volume_in_little_memory():
    lengths = np.random.default_rng(0).lognormal(8, 1.5, 1_000_000).astype(np.int64).clip(1, CAP)
    pack(lengths[:1000], CAP)  # compiled before memory is looked at
    tracemalloc.start()
    try:
        packs = pack(lengths, CAP)
        offsets = packs.offsets
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 100 * lengths.size
    assert len(packs) <= 1.01 * -(-int(lengths.sum()) // CAP)
    assert offsets[-1] == lengths.size


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - {"balanced"}))
def test_u24_eight_samples_of_seven_need_eight_packs_of_eight(strategy):
    packs = pack(np.full(8, 7), 8, strategy=strategy)
    assert len(packs) == 8 == packs.lower_bound
    assert packs.num_tokens.tolist() == [7] * 8
    assert packs.fill == pytest.approx(7 / 8)
