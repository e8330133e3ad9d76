import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.cost import PRESETS, Communication, CostModel, CostRangeWarning
from balancer.topology import Topology

lengths_arrays = st.lists(st.integers(0, 2**20), min_size=1, max_size=20).map(np.array)
links = st.builds(
    Communication,
    method=st.sampled_from(["ring", "all_gather", "ulysses"]),
    bytes_per_token=st.floats(0, 1e7),
    intra_node=st.floats(1e10, 1e12),
    inter_node=st.floats(1e8, 1e10),
    latency_s=st.floats(0, 1e-4),
    inter_latency_s=st.floats(1e-4, 1e-3),
    rounds=st.integers(0, 200),
    overlap=st.floats(0, 1),
    ranks_per_node=st.sampled_from([None, 1, 4, 8]),
)
costs = st.builds(
    CostModel,
    linear=st.floats(1e-6, 1e-3),
    quadratic=st.floats(0, 1e-7),
    fixed=st.floats(0, 1),
    attention=st.sampled_from(["causal", "window:512", "2*causal + 6*linear"]),
    communication=st.none() | links,
)


def by_hand(cost, n, degree):
    """The contract's formula for one sample, in plain Python."""
    pairs = int(cost.pairs([n])[0])
    seconds = (cost.linear * n + cost.quadratic * pairs) / degree
    link = cost.communication
    if link is None or degree == 1:
        return seconds
    across = link.ranks_per_node is not None and degree > link.ranks_per_node
    shards = (degree - 1) / degree if link.method != "ulysses" else (degree - 1) / degree**2
    wire = link.bytes_per_token * n * shards / (link.inter_node if across else link.intra_node)
    return seconds + max(0.0, wire - link.overlap * cost.quadratic * pairs / degree)


@given(cost=costs, lengths=lengths_arrays, degree=st.integers(1, 64))
def test_cost_is_the_formula_of_the_contract(cost, lengths, degree):
    expected = [by_hand(cost, int(n), degree) for n in lengths]
    np.testing.assert_allclose(cost(lengths, degree), expected, rtol=1e-12, atol=1e-15)


@given(cost=costs, lengths=lengths_arrays)
def test_compiled_nanoseconds_equal_rounded_seconds_at_every_degree(cost, lengths):
    degrees = (1, 2, 3, 8, 16)
    compiled = cost.nanoseconds_by_degree(lengths, degrees)
    for row, degree in zip(compiled, degrees, strict=True):
        assert row.dtype == np.int64
        np.testing.assert_array_equal(row, np.floor(cost(lengths, degree) * 1e9 + 0.5).astype(np.int64))
        np.testing.assert_array_equal(row, cost.nanoseconds(lengths, degree))


@given(cost=costs, lengths=lengths_arrays)
def test_longer_costs_more_and_wider_groups_never_use_less_rank_time(cost, lengths):
    ordered = np.sort(lengths)
    rank_s = np.array([degree * cost(ordered, degree) for degree in (1, 2, 3, 4, 8, 9, 16, 64)])
    assert np.all(np.diff(rank_s, axis=1) >= -1e-12 * rank_s[:, 1:])
    assert np.all(np.diff(rank_s, axis=0) >= -1e-9 * rank_s[1:])


def test_positional_coefficients_are_seconds_per_token_pair_and_micro_batch():
    cost = CostModel(2e-4, 1e-8, 0.05)
    assert cost([1000])[0] == pytest.approx(2e-4 * 1000 + 1e-8 * 1000 * 1001 / 2)
    assert cost([1000], 4)[0] == pytest.approx(cost([1000])[0] / 4)
    assert (cost.fixed, cost.fixed_ns) == (0.05, 50_000_000)
    assert cost(7).shape == (1,)


def test_cost_stays_positive_where_32_bits_overflow():
    lengths = np.full(100_000, 131_072, dtype=np.int32)
    cost_ns = CostModel(1e-6, 1e-9).nanoseconds(lengths)
    assert cost_ns.min() > 0
    assert int(cost_ns.sum()) == 100_000 * int(cost_ns[0])


def test_latency_is_paid_once_a_micro_batch():
    link = Communication(bytes_per_token=0, intra_node=1e11, inter_node=1e10, latency_s=1e-5, rounds=96)
    cost = CostModel(1e-4, fixed=0.01, communication=link)
    assert cost.fixed_s(1) == 0.01
    assert cost.fixed_s(4) == pytest.approx(0.01 + 96 * 3 * 1e-5)
    assert cost([100] * 10, 4).sum() == pytest.approx(10 * 100 * 1e-4 / 4)


def test_a_topology_tells_communication_where_nodes_end():
    link = Communication(bytes_per_token=1e6, intra_node=1e11, inter_node=1e10)
    cost = CostModel(1e-4, communication=link).for_topology(Topology(ranks=64, ranks_per_node=8))
    assert cost.communication.ranks_per_node == 8
    wire = cost([10_000], 16)[0] - cost.linear * 10_000 / 16
    assert wire == pytest.approx(1e6 * 10_000 * 15 / 16 / 1e10)
    plain = CostModel(1e-4)
    assert plain.for_topology(Topology(ranks=64, ranks_per_node=8)) is plain


def test_measured_wire_times_fill_the_degrees_between_them():
    link = Communication(
        bytes_per_token=0, intra_node=1.0, inter_node=1.0, measured_s_per_token={2: 4e-6, 8: 2e-6}
    )
    assert [link.wire_s_per_token(d) for d in (1, 2, 4, 8, 16)] == [0.0, 4e-6, 4e-6, 2e-6, 1e-6]


def test_the_generic_decoder_has_equal_parts_at_32k_tokens():
    cost = CostModel.generic()
    n = 32768
    assert cost.linear * n == pytest.approx(cost.quadratic * n * (n + 1) / 2)
    assert "generic" in cost.source
    assert 4 * cost([500], 4)[0] > cost([500])[0]  # sharing a short sequence costs
    assert 4 * cost([32768], 4)[0] == pytest.approx(cost([32768])[0])  # a long one hides it


def test_flexsp_preset_gives_the_published_numbers():
    cost = CostModel.preset("flexsp-a100-7b")
    n = 100_000
    milliseconds = 5.128e-6 * n * n + 0.18396 * n
    assert cost([n])[0] * 1e3 == pytest.approx(milliseconds, rel=1e-12)
    assert cost.fixed == 0.629
    all_to_all_s = n * 8 * 32 * 4096 * 2 / 16 / 8.7e9
    assert cost([n], 16)[0] == pytest.approx(milliseconds / 16e3 + all_to_all_s, rel=1e-9)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_names_its_source_and_pickles(name):
    cost = CostModel.preset(name)
    assert cost.source != "given"
    assert pickle.loads(pickle.dumps(cost)) == cost


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(ValueError, match="flexsp-a100-7b"):
        CostModel.preset("gpt5")


@pytest.mark.parametrize(
    ("coefficients", "name"),
    [
        ({"linear": -1.0}, "linear"),
        ({"linear": float("nan")}, "linear"),
        ({"linear": 1.0, "quadratic": float("inf")}, "quadratic"),
        ({"linear": 1.0, "fixed": -0.1}, "fixed"),
        ({"linear": "fast"}, "linear"),
        ({"linear": "3"}, "CostModel.linear must be a finite number of at least 0, got '3'"),
        ({"linear": True}, "CostModel.linear must be a finite number of at least 0, got True"),
        ({"linear": 10**400}, "CostModel.linear must be a finite number"),
        ({"linear": 1.0, "max_length": "a"}, "CostModel.max_length must be a whole number of at least 1"),
        ({"linear": 1.0, "max_length": 0}, "CostModel.max_length must be a whole number of at least 1"),
        ({"linear": 1.0, "degrees": (1, 0)}, "each of CostModel.degrees must be a whole number"),
        ({}, "all 0"),
        ({"linear": 1.0, "beyond": "ignore"}, "beyond"),
    ],
)
def test_bad_coefficients_are_named(coefficients, name):
    with pytest.raises(ValueError, match=name):
        CostModel(**coefficients)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"attention": 3}, "attention must be a string such as 'causal'"),
        ({"attention": ["causal"]}, "attention must be a string such as 'causal'"),
        (
            {"communication": 3},
            "CostModel.communication must be a balancer.cost.Communication or None",
        ),
        ({"communication": CostModel(1.0)}, "cost.with_communication"),
        ({"table": {}}, "CostModel.from_table"),
        ({"degrees": 3}, r"CostModel.degrees must hold the measured degrees, such as \(1, 2\), got 3"),
        ({"degrees": "12"}, "CostModel.degrees must hold the measured degrees"),
    ],
)
def test_arguments_of_another_kind_are_told_in_a_sentence(arguments, what):
    with pytest.raises(TypeError, match=what):
        CostModel(1e-4, **arguments)


def test_numbers_of_numpy_become_pythons_own():
    cost = CostModel(np.float32(1e-4), max_length=np.int64(100), degrees=[np.int32(1), 2])
    assert (type(cost.linear), type(cost.max_length), cost.degrees) == (float, int, (1, 2))
    assert {type(degree) for degree in cost.degrees} == {int}
    assert hash(cost) == hash(CostModel(float(np.float32(1e-4)), max_length=100, degrees=(1, 2)))


@pytest.mark.parametrize(
    ("lengths", "what"),
    [
        ([5, -1], "row 1 has -1"),
        ([5, 2**31], "row 1 has 2147483648"),
        ([1.5], "whole numbers"),
        ([float("nan")], "whole numbers"),
        ([[1, 2]], "shape"),
        (["a"], "whole numbers"),
    ],
)
def test_bad_lengths_are_named(lengths, what):
    with pytest.raises(ValueError, match=what):
        CostModel(1e-4)(lengths)


@pytest.mark.parametrize("degree", [0, -2, 1.5, True, float("nan"), "2"])
def test_a_bad_degree_is_named(degree):
    with pytest.raises(ValueError, match="cp_degree"):
        CostModel(1e-4)([10], degree)


def test_costs_beyond_64_bit_nanoseconds_say_so():
    with pytest.raises(OverflowError, match=r"row 1 .*check their unit"):
        CostModel(1e6).nanoseconds([1, 10_000])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"method": "mesh"}, "method"),
        ({"intra_node": 0}, "intra_node"),
        ({"inter_node": 1e13}, "inter_node must not exceed"),
        ({"overlap": 1.5}, "overlap"),
        ({"rounds": -1}, "rounds"),
        ({"measured_s_per_token": {2: 1e-6, 4: 1e-7}}, "less rank-time"),
    ],
)
def test_bad_links_are_named(change, name):
    good = {"bytes_per_token": 1e6, "intra_node": 1e11, "inter_node": 1e10}
    with pytest.raises(ValueError, match=name):
        Communication(**{**good, **change})


@given(cost=costs)
def test_a_saved_model_loads_with_every_bit(cost, tmp_path_factory):
    path = tmp_path_factory.mktemp("cost") / "cost.json"
    cost.save(path)
    assert CostModel.load(path) == cost


def test_a_file_that_is_no_cost_model_is_named(tmp_path):
    path = tmp_path / "notes.json"
    for text in ("not json", "[1, 2]", '{"version": 9}', '{"version": 1, "linear": 1, "cubic": 2}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"notes\.json is not a cost model"):
            CostModel.load(path)
    with pytest.raises(FileNotFoundError):
        CostModel.load(tmp_path / "missing.json")


def test_a_length_that_was_not_measured_warns_or_raises():
    cost = CostModel(1e-4, max_length=1000, degrees=(1, 2))
    with pytest.warns(CostRangeWarning, match="up to 1000 tokens"):
        cost([1001])
    with pytest.warns(CostRangeWarning, match="cp_degree 4 was not measured, only 1, 2"):
        cost.nanoseconds([10], 4)
    strict = CostModel(1e-4, max_length=1000, beyond="raise")
    with pytest.raises(ValueError, match="extrapolation"):
        strict([1001])
    assert strict([1000])[0] == pytest.approx(0.1)
