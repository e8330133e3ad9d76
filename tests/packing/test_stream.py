"""Packing an endless stream."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.workloads import MIXES, clipped
from packing import StreamPacker, pack
from packing.stream import ORDERS
from tests.packing.cases import lengths_and_cap

settings = st.fixed_dictionaries(
    {
        "open_packs": st.integers(1, 5),
        "order": st.sampled_from(ORDERS),
        "window": st.integers(1, 20),
        "max_samples": st.one_of(st.none(), st.integers(1, 6)),
    }
)


def flat(packs):
    return list(itertools.chain.from_iterable(packs))


def stream(packer, lengths, cuts=()):
    """All packs of a stream that comes in parts."""
    edges = [0, *sorted(min(cut, len(lengths)) for cut in cuts), len(lengths)]
    packs = []
    for first, last in itertools.pairwise(edges):
        packs += packer.add(lengths[first:last])
    return packs + packer.flush()


@given(case=lengths_and_cap(), options=settings, cuts=st.lists(st.integers(0, 60), max_size=3))
def test_every_sample_once_no_pack_over_its_limits_and_cuts_change_nothing(case, options, cuts):
    lengths, cap = case
    packs = stream(StreamPacker(cap, **options), lengths)
    assert sorted(flat(packs)) == [s for s, length in enumerate(lengths) if length]
    for group in packs:
        assert group == sorted(group)
        assert 0 < sum(lengths[s] for s in group) <= cap
        assert len(group) <= (options["max_samples"] or len(group))
    assert stream(StreamPacker(cap, **options), lengths, cuts) == packs


@given(case=lengths_and_cap(), options=settings, cut=st.integers(0, 60))
def test_a_state_taken_anywhere_continues_exactly(case, options, cut):
    lengths, cap = case
    packer = StreamPacker(cap, **options)
    first = packer.add(lengths[:cut])
    state = json.loads(json.dumps(packer.state_dict()))
    rest = packer.add(lengths[cut:]) + packer.flush()
    resumed = StreamPacker(cap, **options)
    resumed.add(lengths[: cut // 2])  # whatever it did before is forgotten
    resumed.load_state_dict(state)
    assert resumed.num_samples == min(cut, len(lengths))
    assert resumed.add(lengths[cut:]) + resumed.flush() == rest
    assert resumed.counts == packer.counts
    assert stream(StreamPacker(cap, **options), lengths) == first + rest


@given(case=lengths_and_cap())
def test_strict_order_gives_the_stream_back(case):
    lengths, cap = case
    packs = stream(StreamPacker(cap, order="strict"), lengths)
    assert flat(packs) == [s for s, length in enumerate(lengths) if length]
    assert len(packs) == len(pack(lengths, cap, strategy="next_fit"))


@given(case=lengths_and_cap(), window=st.integers(1, 20))
def test_no_sample_leaves_its_window(case, window):
    lengths, cap = case
    packs = stream(StreamPacker(cap, order="window", window=window), lengths)
    assert all(len({s // window for s in group}) == 1 for group in packs)
    firsts = [group[0] for group in packs]
    assert firsts == sorted(firsts)


@given(case=lengths_and_cap(most_samples=200), open_packs=st.integers(1, 4), factor=st.integers(2, 4))
def test_a_sample_waits_at_most_the_stated_number_of_packs(case, open_packs, factor):
    lengths, cap = case
    packer = StreamPacker(cap, open_packs, max_wait=factor * open_packs)
    closed_before, left_with = [], {}
    packs = []
    for length in lengths:
        closed_before.append(len(packs))
        packs += packer.add([length])
    for number, group in enumerate(packs):
        left_with |= dict.fromkeys(group, number)
    for sample, number in left_with.items():
        assert number - closed_before[sample] < factor * open_packs
    assert len(packs) - min((closed_before[s] for s in flat(packer.flush())), default=len(packs)) <= (
        factor * open_packs
    )


@pytest.mark.parametrize("mix", ["lognormal", "python_sources"])
@pytest.mark.parametrize("cap", [2048, 8192])
def test_256_open_packs_fill_within_a_hundredth_of_best_fit(mix, cap):
    lengths = clipped(MIXES[mix](300_000, 1), cap)
    packer = StreamPacker(cap)
    num_packs = len(packer.add(lengths)) + len(packer.flush())
    assert num_packs <= 1.005 * len(pack(lengths, cap))


def test_a_state_takes_a_few_kilobytes():
    packer = StreamPacker(8192)
    packer.add(clipped(MIXES["lognormal"](100_000, 1), 8192))
    assert len(json.dumps(packer.state_dict())) < 10_000


def test_over_long_samples_follow_the_rule_and_are_counted():
    packer = StreamPacker(4)
    packer.add([1])
    with pytest.raises(ValueError, match=r"sample 2 of the stream has 9.*oversize="):
        packer.add([2, 9])
    assert packer.num_samples == 1
    assert StreamPacker(4, oversize="drop").add([5, 4, 0]) == [[1]]
    cut = StreamPacker(4, oversize="truncate")
    assert cut.add([5, 4, 0]) == [[0], [1]]
    assert cut.counts == {"kept": 2, "dropped": 0, "truncated": 1, "split": 0, "empty": 1}


def test_bad_settings_and_foreign_states_get_a_sentence():
    with pytest.raises(ValueError, match="order must be one of free"):
        StreamPacker(8, order="any")
    with pytest.raises(ValueError, match="open_packs must be at least 1"):
        StreamPacker(8, 0)
    with pytest.raises(ValueError, match="max_wait must be at least"):
        StreamPacker(8, 4, max_wait=7)
    with pytest.raises(ValueError, match="belongs to another stream packer"):
        StreamPacker(8).load_state_dict(StreamPacker(9).state_dict())
