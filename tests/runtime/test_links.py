"""Links are measured by all ranks together and give the same numbers on each."""

from types import SimpleNamespace

import pytest

from balancer import CostModel, Topology, runtime
from balancer.cost import Communication, LinkTime
from balancer.runtime import links as links_module
from balancer.runtime.links import measure_links
from balancer.runtime.peers import Peers
from tests.support.ranks import run_ranks

BASE = Communication(bytes_per_token=1000.0, intra_node=1e9, inter_node=1e8, rounds=10)


def measure(rank):
    groups = runtime.ContextGroups(Topology(ranks=4), (1, 2, 3, 4))
    measured = {}
    for method in ("ring", "all_gather", "ulysses"):
        measured[method] = measure_links(groups, method=method, sizes=(1 << 10, 1 << 23), repeats=3)
    errors = []
    for bad in ({"method": "mesh"}, {"sizes": (5, 5)}):
        try:
            measure_links(groups, **bad)
        except ValueError as error:
            errors.append(str(error))
    groups.close()
    return measured, errors


def test_every_rank_measures_the_same_positive_times():
    results = run_ranks(measure, 4)
    first, errors = results[0]
    assert all(measured == first for measured, _ in results)
    assert "method must be one of" in errors[0]
    assert "two different" in errors[1]
    for links in first.values():
        assert sorted(links) == [2, 4]  # groups of 3 do not tile 4 ranks
        assert all(0 <= link.s_per_byte * 2**20 < 10 and link.latency_s >= 0 for link in links.values())
    cost = CostModel(1e-4, communication=BASE.measured(first["ring"]))
    assert cost([1000], 2)[0] >= 1000 * 1e-4 / 2


LATENCY_S, S_PER_BYTE = 0.25, 0.001


def measure_by_a_clock_of_its_own(rank):
    """Exchanges take the longer the higher the rank, and a second more in the first two rounds."""
    now, round_number = [0.0], [0]
    links_module.time = SimpleNamespace(perf_counter=lambda: now[0])
    barrier = links_module.dist.barrier

    def begin_round():
        round_number[0] += 1
        barrier()

    links_module.dist = SimpleNamespace(**vars(links_module.dist) | {"barrier": begin_round})

    def taking(name, received):
        exchange = getattr(Peers, name)

        def timed(self, tensor, *others):
            hindered = 1.0 if round_number[0] % 5 in (1, 2) else 0.0  # a round to warm up and four that count
            now[0] += LATENCY_S + received(self) * tensor.nbytes * S_PER_BYTE * (rank + 1) + hindered
            return exchange(self, tensor, *others)

        setattr(Peers, name, timed)

    taking("shift", lambda peers: 1)
    taking("all_gather", lambda peers: peers.size - 1)
    taking("all_to_all", lambda peers: (peers.size - 1) / peers.size)
    groups = runtime.ContextGroups(Topology(ranks=4), (1, 2, 4))
    found = {}
    for method in ("ring", "all_gather", "ulysses"):
        found[method] = measure_links(groups, method=method, sizes=(1 << 12, 1 << 10), repeats=4)
    return found


def test_the_slowest_rank_of_the_fastest_round_counts():
    for found in run_ranks(measure_by_a_clock_of_its_own, 4):
        for method, links in found.items():
            for degree, link in links.items():
                assert link.s_per_byte == pytest.approx(4 * S_PER_BYTE)
                assert link.latency_s == pytest.approx(LATENCY_S * (degree - 1 if method == "ring" else 1))


@pytest.mark.parametrize("method", ["ring", "all_gather", "ulysses"])
def test_links_of_a_known_rate_give_back_the_formula(method):
    base = Communication(
        method=method, bytes_per_token=1000.0, intra_node=1e9, inter_node=1e9, latency_s=1e-4
    )
    hops = {degree: 1 if method == "ulysses" else degree - 1 for degree in (2, 4, 8)}
    links = {d: LinkTime(latency_s=1e-4 * hops[d], s_per_byte=1e-9) for d in hops}
    measured = base.measured(links)
    for degree in (2, 4, 8):
        assert measured.wire_s_per_token(degree) == pytest.approx(base.wire_s_per_token(degree))
        assert measured.latency(degree) == pytest.approx(base.latency(degree))


def test_a_wider_group_that_seems_to_spend_less_rank_time_is_raised():
    links = {2: LinkTime(latency_s=0, s_per_byte=1e-6), 4: LinkTime(latency_s=0, s_per_byte=1e-9)}
    measured = BASE.measured(links)
    assert 4 * measured.wire_s_per_token(4) == pytest.approx(2 * measured.wire_s_per_token(2))
