"""What ranks tell each other on the CPU arrives whole, in order, and failures reach everyone."""

import pytest
import torch.distributed as dist

from balancer.runtime import HostGroup
from tests.support.ranks import run_ranks, run_ranks_anyway

RANKS = 3


def test_one_process_alone_hears_itself():
    host = HostGroup()
    assert host.gather_ints([3, 4]).tolist() == [[3, 4]]
    assert host.gather_bytes(b"abc") == [b"abc"]
    parts, notes = host.send([b"own"], [7])
    assert (parts, notes.tolist()) == ([b"own"], [[7]])
    host.raise_together(None, "nothing")
    with pytest.raises(KeyError):
        host.raise_together(KeyError("x"), "nothing")


def talk(rank):
    # ranks in unequally many groups of torch's own, which names groups by their number
    dist.new_group([0, 1])
    if rank == 0:
        dist.new_group([0], use_local_synchronization=True)
    heard = []
    for order in ((0, 1, 2), (2, 0, 1)):
        host = HostGroup(order)
        me = host.rank
        assert order[me] == rank
        heard.append(
            (
                host.gather_ints([me, 10 * me]).tolist(),
                host.gather_bytes(bytes([me]) * (2 * me)),
                host.gather_bytes(b""),
                # member i sends i bytes to those behind it, nothing to the others
                host.send([bytes([me, other]) * me * (other > me) for other in range(RANKS)], [me, -me]),
            )
        )
    pair = HostGroup((2, 0)).gather_ints([rank]).tolist() if rank != 1 else None
    return heard, [(parts, notes.tolist()) for *_, (parts, notes) in heard], pair


def test_ranks_hear_each_other_in_data_order_whatever_groups_there_are():
    for rank, (heard, sent, pair) in enumerate(run_ranks(talk, RANKS)):
        for order, (ints, data, nothing, _), (parts, notes) in zip(
            ((0, 1, 2), (2, 0, 1)), heard, sent, strict=True
        ):
            me = order.index(rank)
            assert ints == [[0, 0], [1, 10], [2, 20]]
            assert data == [b"", b"\1\1", b"\2\2\2\2"]
            assert nothing == [b""] * RANKS
            assert parts == [bytes([other, me]) * other * (me > other) for other in range(RANKS)]
            assert notes == [[0, 0], [1, -1], [2, -2]]
        assert pair == ([[2], [0]] if rank != 1 else None)


def fail(rank):
    host = HostGroup(range(RANKS))
    host.raise_together(None, "first errand")
    host.raise_together(ValueError(f"bad row on {rank}") if rank else None, "second errand")


def test_a_failure_is_raised_on_all_ranks_and_told_by_its_own_words():
    outcomes = run_ranks_anyway(fail, RANKS)
    assert "ValueError: bad row on 1" in outcomes[1].error
    assert "ValueError: bad row on 2" in outcomes[2].error
    assert (
        "RuntimeError: second errand: data ranks [1, 2] failed, so rank 0 cannot go on. "
        "Rank 1 says: ValueError: bad row on 1"
    ) in outcomes[0].error
