"""Numbers as people give them: numpy scalars, fractions, sums beyond 64 bits, damaged states."""

from __future__ import annotations

import numpy as np
import pytest

from packing import StreamPacker, pack

STATE = StreamPacker(8).state_dict()


@pytest.mark.parametrize("name", ["max_tokens", "align", "max_samples", "seed", "max_second"])
@pytest.mark.parametrize("bad", [1.5, "4", float("nan"), [4]])
def test_a_number_that_is_not_whole_gets_a_sentence(name, bad):
    options = {"max_tokens": 8, "second": [1, 1]} if name == "max_second" else {"max_tokens": 8}
    with pytest.raises(ValueError, match=f"{name} must be a whole number; got"):
        pack([1, 2], **(options | {name: bad}))
    if name not in ("seed", "max_second"):
        with pytest.raises(ValueError, match=f"{name} must be a whole number; got"):
            StreamPacker(**(options | {name: bad}))


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.uint64, np.float32, float])
def test_whole_numbers_of_any_kind_pack_alike(kind):
    lengths = [3, 1, 4, 1, 5, 9, 2, 6]
    plain = pack(lengths, 12, align=2, max_samples=3, seed=7)
    other = pack(lengths, kind(12), align=kind(2), max_samples=kind(3), seed=kind(7))
    assert other.order.tolist() == plain.order.tolist()
    if np.issubdtype(kind, np.integer):
        assert plain.reshuffled(kind(1), kind(2)).order.tolist() == plain.reshuffled(1, 2).order.tolist()


@pytest.mark.parametrize(("oversize", "kept"), [("drop", 0), ("truncate", 12), ("truncate_left", 12)])
def test_lost_tokens_are_counted_beyond_64_bits(oversize, kept):
    packs = pack(np.full(3, 2**62 + 5), 4, oversize=oversize)
    assert packs.total_tokens == kept
    assert packs.total_tokens + packs.lost_tokens == 3 * (2**62 + 5)


def test_needs_of_a_group_do_not_wrap_around():
    with pytest.raises(ValueError, match="max_second"):
        pack([1, 1, 1, 1], 8, second=[2**62] * 4, max_second=2**62, groups=[0, 0, 0, 0])


def test_a_stream_without_room_for_a_sample_is_refused():
    with pytest.raises(ValueError, match="max_samples must be at least 1; got 0"):
        StreamPacker(8, max_samples=0)


@pytest.mark.parametrize(
    "damaged",
    [
        STATE | {"open": STATE["open"][:-3]},
        STATE | {"open": ""},
        STATE | {"open": None},
        STATE | {"counts": None},
        {key: value for key, value in STATE.items() if key != "open"},
    ],
)
def test_a_damaged_state_gets_a_sentence_and_changes_nothing(damaged):
    packer, twin = StreamPacker(8), StreamPacker(8)
    for stream in (packer, twin):
        stream.add([3, 5, 6])
    with pytest.raises(ValueError, match="must be what state_dict gave"):
        packer.load_state_dict(damaged)
    assert packer.state_dict() == twin.state_dict()
