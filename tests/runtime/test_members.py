"""Members alone make their groups, in however many other groups each of them is."""

import torch
import torch.distributed as dist

from balancer import Topology, runtime
from balancer.runtime.host import HostGroup
from balancer.runtime.members import fresh_name, member_group
from balancer.runtime.peers import Peers
from tests.support.ranks import run_ranks


def summed(rank, group):
    """What a group's members sum to, and who they are."""
    total = torch.tensor([2**rank])
    dist.all_reduce(total, group=group)
    return total.item(), dist.get_process_group_ranks(group)


def with_own_groups(rank):
    """Rank r has made r groups of its own before, and one more between."""
    for _ in range(rank):
        dist.new_group([rank], use_local_synchronization=True)
    first = runtime.ContextGroups(Topology(ranks=4))
    if rank == 2:
        dist.new_group([2], use_local_synchronization=True)
    second = runtime.ContextGroups(Topology(ranks=4))
    pair = rank - rank % 2
    found = [summed(rank, groups.get(pair, 2)) for groups in (first, second)]
    first.close()
    third = runtime.ContextGroups(Topology(ranks=4))
    return [*found, summed(rank, third.get(pair, 2)), summed(rank, third.get(0, 4))]


def test_ranks_in_unequally_many_groups_find_each_other():
    for rank, found in enumerate(run_ranks(with_own_groups, 4)):
        pair = [0, 1] if rank < 2 else [2, 3]
        assert found == [(sum(2**r for r in pair), pair)] * 3 + [(15, [0, 1, 2, 3])]


def over_unequal_ranks(rank):
    """Groups of ranks 0..2 and of ranks 2, 3: rank 2 is in both, the others in one."""
    found = {}
    if rank < 3:
        groups = runtime.ContextGroups(Topology(ranks=3), [1, 2, 3], ranks=(0, 1, 2))
        found["three"] = HostGroup((0, 1, 2)).gather_ints([rank])[:, 0].tolist()
        if rank < 2:
            found["pair"] = summed(rank, groups.get(0, 2))
    if rank >= 2:
        groups = runtime.ContextGroups(Topology(ranks=2), ranks=(3, 2))
        found["other"] = summed(rank, groups.get(0, 2))
        found["two"] = HostGroup((3, 2)).gather_ints([rank])[:, 0].tolist()
    return found


def test_groups_over_overlapping_ranks_do_not_wait_for_each_other():
    three, two = {"three": [0, 1, 2]}, {"two": [3, 2]}
    pair, other = {"pair": (3, [0, 1])}, {"other": (12, [3, 2])}  # in the order of the data ranks
    assert run_ranks(over_unequal_ranks, 4) == [
        three | pair,
        three | pair,
        three | two | other,
        two | other,
    ]


def of_six(rank):
    """Groups of six ranks: the last two have no four of their own, and four may begin anywhere."""
    groups = runtime.ContextGroups(Topology(ranks=6), [1, 2, 4])
    found = [len(groups), *summed(rank, groups.get(rank - rank % 2, 2))]
    if rank < 4:
        found += summed(rank, groups.get(0, 4))
    if rank >= 2:
        heard = Peers(groups.get(2, 4)).all_gather(torch.tensor([rank]))
        found.append(heard.flatten().tolist())
    groups.close()
    return found


def test_six_ranks_have_two_groups_at_most_and_the_rest_goes_through_all():
    for rank, found in enumerate(run_ranks(of_six, 6)):
        pair = [rank - rank % 2, rank - rank % 2 + 1]
        fours = [15, [0, 1, 2, 3]] if rank < 4 else []
        others = [[2, 3, 4, 5]] if rank >= 2 else []
        assert found == [2 if rank < 4 else 1, sum(2**r for r in pair), pair, *fours, *others]


def names_of(rank):
    mine = [fresh_name("test", ranks) for ranks in ((0, 1), (0, 1), range(1000), (0, 1))]
    group = member_group("test", (0, 1))
    known = group in dist.distributed_c10d._world.pg_map
    dist.barrier()  # the other member may still be connecting
    dist.destroy_process_group(group)
    return mine, known, group in dist.distributed_c10d._world.pg_map


def test_names_are_new_and_equal_and_torch_knows_the_groups():
    (first, known, left), second = run_ranks(names_of, 2)
    assert (first, known, left) == second
    assert known
    assert not left
    assert len(set(first)) == 4
    assert max(map(len, first)) < 100
