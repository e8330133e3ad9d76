"""Phases against brute force: every assignment of a few samples to a few ranks is tried."""

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer import StepPlan, check_plan
from balancer.cost import CostModel
from balancer.exchange import ExchangeTable
from balancer.phases import Links, Phase, plan_phases
from balancer.topology import Topology
from packing.table import SampleTable

LANGUAGE = CostModel(1e-4, 1e-8, 0.001)
VISION = CostModel(5e-5, 4e-8, 0.0005, attention="full")
AUDIO = CostModel(2e-4)


def table(lengths, **phases):
    columns = {name: np.array(units, dtype=np.int64) for name, units in phases.items()}
    return replace(SampleTable.from_lengths(np.array(lengths, dtype=np.int64)), phases=columns)


def plan(samples, *, ranks=4, phases=None, max_tokens=4096, cost=LANGUAGE, **options):
    topology = options.pop("topology", None) or Topology(ranks=ranks, ranks_per_node=2)
    phases = phases or {"vision": Phase(cost=VISION, bytes_per_unit=2048)}
    return plan_phases(samples, topology=topology, max_tokens=max_tokens, cost=cost, phases=phases, **options)


samples_with_images = st.lists(
    st.tuples(st.integers(1, 4096), st.one_of(st.just(0), st.integers(1, 8000))), min_size=0, max_size=24
).map(lambda rows: table([n for n, _ in rows], vision=[u for _, u in rows]))
modes = st.sampled_from(["auto", "joint", "separate"])
syncs = st.sampled_from(["step", "micro_batch"])
meetings = st.sampled_from(["phase", "step"])


def held(step_plan):
    """Samples of each micro-batch, all together."""
    return sorted(step_plan.micro_batches.order.tolist())


@given(samples_with_images, modes, syncs, meetings, st.sampled_from([(1,), (1, 2, 4)]), st.integers(4, 7))
def test_every_sample_is_read_once_and_encoded_once(samples, mode, sync, meet, degrees, ranks):
    result = plan(samples, mode=mode, sync=sync, meet=meet, cp_degrees=degrees, ranks=ranks)
    assert held(result.language) == list(range(len(samples)))
    with_units = np.flatnonzero(samples.phases["vision"] > 0).tolist()
    assert held(result.encoders["vision"]) == with_units
    for each in (result.language, result.encoders["vision"]):
        batches = each.micro_batches
        assert np.all(batches.first_rank + batches.cp_degree <= ranks)
        assert np.all(np.diff(batches.offsets) > 0)
    batches = result.language.micro_batches
    assert np.all(batches.tokens <= 4096 * batches.cp_degree)
    assert result.time_s >= result.lower_bound_s * (1 - 1e-9)
    assert mode in ("auto", result.mode)


@given(samples_with_images, modes, syncs, meetings, st.sampled_from([(1,), (1, 2, 4)]))
def test_the_language_plan_keeps_the_laws_of_every_plan(samples, mode, sync, meet, degrees):
    language = plan(samples, mode=mode, sync=sync, meet=meet, cp_degrees=degrees).language
    check_plan(language, samples, max_tokens=4096, cost=LANGUAGE, cp_degrees=degrees)
    assert StepPlan.from_bytes(language.to_bytes()).digest() == language.digest()


@given(samples_with_images, syncs, st.sampled_from([(1,), (1, 2, 4)]))
def test_a_joint_plan_encodes_where_it_reads(samples, sync, degrees):
    result = plan(samples, mode="joint", sync=sync, cp_degrees=degrees)
    places = {}
    for m, rows in enumerate(np.split(result.language.order, result.language.offsets[1:-1])):
        batches = result.language.micro_batches
        for row in rows.tolist():
            places[row] = (int(batches.first_rank[m]), int(batches.cp_degree[m]), int(batches.slot[m]))
    encoder = result.encoders["vision"]
    for m in range(len(encoder.micro_batches)):
        batches = encoder.micro_batches
        place = (int(batches.first_rank[m]), int(batches.cp_degree[m]), int(batches.slot[m]))
        assert all(places[row] == place for row in batches.samples(m).tolist())
    assert result.exchanges == {}


@given(samples_with_images, syncs, st.sampled_from([(1,), (1, 2)]), st.sampled_from([(1,), (1, 2, 4)]))
def test_a_separate_plan_carries_every_output_to_where_it_is_read(samples, sync, encoder_degrees, degrees):
    phases = {"vision": Phase(cost=VISION, bytes_per_unit=6, cp_degrees=encoder_degrees)}
    result = plan(samples, mode="separate", sync=sync, cp_degrees=degrees, phases=phases)
    owner, reader = (
        {int(s): (int(b.first_rank[m]), int(b.cp_degree[m])) for m in range(len(b)) for s in b.samples(m)}
        for b in (result.encoders["vision"].micro_batches, result.language.micro_batches)
    )
    exchange = result.exchanges["vision"]
    for s, units in enumerate(samples.phases["vision"].tolist()):
        size = 6 * units
        here = exchange.sample == s
        if units == 0:
            assert not here.any()
            continue
        (source, senders), (target, readers) = owner[s], reader[s]
        share = {source + i: (i + 1) * size // senders - i * size // senders for i in range(senders)}
        for rank in range(target, target + readers):
            mine = here & (exchange.target_rank == rank)
            sent = dict(
                zip(exchange.source_rank[mine].tolist(), exchange.size_bytes[mine].tolist(), strict=True)
            )
            # What the others hold arrives; what this rank holds itself does not travel.
            assert sent == {r: held for r, held in share.items() if held and r != rank}
        assert here.sum() == sum(
            1 for r, held in share.items() for rank in range(target, target + readers) if held and r != rank
        )


def test_the_runtimes_exchange_table_moves_the_same_bytes():
    rng = np.random.default_rng(0)
    samples = table(rng.integers(50, 4000, 60), vision=rng.integers(0, 3000, 60))
    result = plan(
        samples,
        mode="separate",
        cp_degrees=(1, 2, 4),
        phases={"vision": Phase(cost=VISION, bytes_per_unit=6)},
    )
    rows = samples.phases["vision"]
    moves = ExchangeTable.from_plans(result.encoders["vision"], result.language, rows)
    exchange = result.exchanges["vision"]
    for source in range(4):
        for target in range(4):
            moved = moves.count[(moves.source == source) & (moves.target == target)].sum()
            planned = exchange.size_bytes[(exchange.source_rank == source) & (exchange.target_rank == target)]
            if source != target:
                assert planned.sum() == 6 * moved


def brute_force(samples, ranks, meet):
    """Least time of a joint plan at degree 1 without fixed cost or cap."""
    language = LANGUAGE(samples.num_tokens)
    vision = VISION(samples.phases["vision"])
    best = np.inf
    for where in itertools.product(range(ranks), repeat=len(samples)):
        loads = [np.bincount(where, work, ranks) for work in (language, vision)]
        time_s = max(loads[0] + loads[1]) if meet == "step" else loads[0].max() + loads[1].max()
        best = min(best, time_s)
    return best


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.integers(1, 4096), st.one_of(st.just(0), st.integers(1, 8000))), min_size=1, max_size=7
    ),
    st.integers(2, 3),
    meetings,
)
def test_no_joint_plan_beats_the_optimum_nor_the_optimum_the_bound(rows, ranks, meet):
    samples = table([n for n, _ in rows], vision=[u for _, u in rows])
    optimum = brute_force(samples, ranks, meet)
    free = {"vision": replace(VISION, fixed=0.0)}
    cost = replace(LANGUAGE, fixed=0.0)
    result = plan(samples, ranks=ranks, mode="joint", meet=meet, phases=free, cost=cost, max_tokens=10**6)
    assert result.lower_bound_s <= optimum * (1 + 1e-6)
    assert optimum * (1 - 1e-6) <= result.time_s


@pytest.mark.parametrize("meet", ["step", "phase"])
def test_joint_plans_are_near_the_optimum(meet):
    rng = np.random.default_rng(0)
    for _ in range(20):
        samples = table(rng.integers(1, 4096, 6).tolist(), vision=rng.integers(0, 8000, 6).tolist())
        optimum = brute_force(samples, 2, meet)
        free, cost = {"vision": replace(VISION, fixed=0.0)}, replace(LANGUAGE, fixed=0.0)
        result = plan(samples, ranks=2, mode="joint", meet=meet, phases=free, cost=cost, max_tokens=10**6)
        assert result.time_s <= optimum * 1.1


def test_image_work_is_spread_at_equal_language_load():
    samples = table([2000] * 8, vision=[0, 0, 0, 0, 8000, 8000, 16000, 16000])
    result = plan(samples, phases={"vision": CostModel(1e-4)}, cost=CostModel(1e-4))
    encoder_s = sorted(np.round(result.encoders["vision"].rank_time_s, 9).tolist())
    assert encoder_s == [0.8, 0.8, 1.6, 1.6]
    assert result.imbalance["language"] == pytest.approx(1.0)
    assert result.imbalance["vision"] == pytest.approx(4 / 3)
    assert result.gap == pytest.approx(0.0, abs=1e-9)


def test_ranks_without_images_are_legal():
    result = plan(table([100] * 8, vision=[500] + [0] * 7), mode="joint")
    assert np.count_nonzero(result.encoders["vision"].rank_time_s) == 1
    nothing = plan(table([100] * 8, vision=[0] * 8))
    assert len(nothing.encoders["vision"].micro_batches) == 0
    assert nothing.encoders["vision"].time_s == 0.0
    empty = plan(table([], vision=[]))
    assert (empty.time_s, empty.gap) == (0.0, 0.0)


def test_the_faster_mode_is_taken():
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.lognormal(6.5, 1, 200).astype(int) + 1, 4096)
    units = np.where(rng.random(200) < 0.4, rng.integers(1, 8000, 200), 0)
    samples = table(lengths, vision=units)
    fast, slow = (
        plan(samples, sync="micro_batch", links=Links(intra_node=rate, inter_node=rate))
        for rate in (1e12, 1e6)
    )
    assert set(fast.alternatives) == {"joint", "separate"}
    assert (fast.mode, slow.mode) == ("separate", "joint")
    for result in (fast, slow):
        assert result.time_s == min(result.alternatives.values())


def test_exchange_time_grows_with_bytes_and_counts_both_ways():
    samples = table([100] * 16, vision=list(range(100, 1700, 100)))
    links = Links(intra_node=1e9, inter_node=1e8, latency_s=0.0)
    small, large = (
        plan(
            samples, mode="separate", links=links, phases={"vision": Phase(cost=VISION, bytes_per_unit=size)}
        )
        for size in (1000, 2000)
    )
    assert large.exchanges["vision"].time_s == pytest.approx(2 * small.exchanges["vision"].time_s)
    exchange = small.exchanges["vision"]
    busiest = 0.0
    for rank in range(4):
        seconds = 0.0
        for inside, rate in ((True, 1e9), (False, 1e8)):
            same_node = (exchange.source_rank // 2 == exchange.target_rank // 2) == inside
            sent = exchange.size_bytes[same_node & (exchange.source_rank == rank)].sum()
            received = exchange.size_bytes[same_node & (exchange.target_rank == rank)].sum()
            seconds += max(sent, received) / rate
        busiest = max(busiest, seconds)
    assert exchange.time_s == pytest.approx(2 * busiest)


def test_encoder_ranks_are_named_so_that_outputs_stay_at_home():
    # One equal image for each of four equal samples: whoever encodes it can be the one who reads it.
    samples = table([1000] * 4, vision=[3000] * 4)
    assert plan(samples, mode="separate").exchanges["vision"].total_bytes == 0


def test_a_slow_rank_gets_less_of_every_phase():
    rng = np.random.default_rng(0)
    samples = table(rng.integers(50, 200, 256), vision=rng.integers(50, 200, 256))
    speed = np.array([1.0, 1.0, 1.0, 0.5])
    for mode in ("joint", "separate"):
        result = plan(samples, topology=Topology(ranks=4, speed=speed), mode=mode)
        for each in (result.language, result.encoders["vision"]):
            assert each.imbalance < 1.15
            work = each.rank_time_s * speed
            assert work[3] < 0.65 * work[:3].mean()


def test_several_encoders_are_balanced_together():
    rng = np.random.default_rng(0)
    lengths = rng.integers(100, 2000, 400)
    vision = np.where(rng.random(400) < 0.3, rng.integers(100, 4000, 400), 0)
    audio = np.where(rng.random(400) < 0.2, rng.integers(100, 1500, 400), 0)
    result = plan(
        table(lengths, vision=vision, audio=audio),
        ranks=8,
        phases={"vision": VISION, "audio": AUDIO},
        max_tokens=8192,
    )
    assert result.mode == "joint"
    assert result.gap < 0.05
    assert set(result.imbalance) == {"language", "vision", "audio"}


def test_units_beyond_a_ranks_memory_split_its_micro_batches():
    samples = table([1000] * 4, vision=[900] * 4)
    phases = {"vision": Phase(cost=VISION, bytes_per_unit=10, max_units=900)}
    for mode in ("joint", "separate"):
        result = plan(samples, ranks=1, phases=phases, mode=mode)
        assert np.all(result.encoders["vision"].micro_batches.tokens <= 900)
    assert len(plan(samples, ranks=1, phases=phases, mode="joint").language.micro_batches) == 4


def test_equal_inputs_give_equal_plans():
    rng = np.random.default_rng(1)
    samples = table(rng.integers(1, 3000, 300), vision=rng.integers(0, 3000, 300))
    for sync in ("step", "micro_batch"):
        first, second = (plan(samples, sync=sync, cp_degrees=(1, 2)) for _ in range(2))
        assert first.digest() == second.digest()
        assert first.time_s == second.time_s
        assert pickle.loads(pickle.dumps(first)).digest() == first.digest()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"mode": "both"}, "mode must be one of"),
        ({"meet": "never"}, "meet must be one of"),
        ({"phases": {"audio": AUDIO}}, "phases and the table's columns must be the same"),
        ({"phases": {"vision": VISION}, "mode": "separate"}, "bytes_per_unit"),
        ({"topology": Topology(ranks=2, pipeline_stages=2), "mode": "joint"}, "pipeline_stages=1"),
    ],
)
def test_bad_arguments_get_a_sentence(arguments, what):
    with pytest.raises(ValueError, match=what):
        plan(table([10, 20], vision=[1, 0]), **arguments)


def test_bad_phases_and_links_get_a_sentence():
    with pytest.raises(ValueError, match="max_units"):
        Phase(cost=VISION, max_units=0)
    with pytest.raises(ValueError, match="bytes_per_unit"):
        Phase(cost=VISION, bytes_per_unit=-1.0)
    with pytest.raises(ValueError, match="Links"):
        Links(intra_node=0.0)
    with pytest.raises(ValueError, match="2 samples and 1 values of 'vision'"):
        plan(table([10, 20], vision=[1]))
    with pytest.raises(ValueError, match="row 1 has -5"):
        plan(table([10, 20], vision=[1, -5]))
