"""The numbers of a report, against the parts that they come from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import POLICIES, CostModel, Topology, admission, check_plan, simulate
from balancer.costs.model import FitReport
from loaders.cli.simulate_report import policy_numbers
from loaders.reporting.choice import CAP_TOLERANCE
from loaders.reporting.gains import gain
from loaders.reporting.lanes import degree_use, lanes
from loaders.reporting.profile import profile
from loaders.reporting.question import Setting, default_degrees
from loaders.reporting.report import gather
from loaders.reporting.running import plan, rows_of_steps
from loaders.reporting.search import FITS, HOMELESS, TOO_LARGE, UNKNOWN, fit
from tests.reporting.cases import admitted, modelled, question, quiet, report, some_lengths


@pytest.fixture(scope="module")
def found():
    return report(jitter=0.02)


@pytest.fixture(scope="module")
def with_model():
    asked = modelled(given=Setting(4096, (1, 2, 4), "micro_batch"))
    return gather(asked, admitted(some_lengths()), "numbers", quiet)


def test_policies_cost_what_simulate_says(found):
    asked = found.question
    outcomes = simulate(
        some_lengths(), topology=asked.topology, max_tokens=4096, cost=asked.cost, cp_degrees=(1, 2, 4),
        sync="step", steps=6, global_batch_size=48, jitter=0.02,
    )  # fmt: skip
    assert [row.name for row in found.rows[: len(POLICIES)]] == list(POLICIES)
    for row, outcome in zip(found.rows, outcomes, strict=False):
        assert row.numbers == policy_numbers(outcome)


def test_the_last_rows_are_simulated_at_their_own_settings(with_model):
    asked = with_model.question
    for row in with_model.rows[-2:]:
        (outcome,) = simulate(
            some_lengths(), topology=asked.topology, max_tokens=row.setting.max_tokens, cost=asked.cost,
            cp_degrees=row.setting.cp_degrees, sync=row.setting.sync, policies=[row.policy], steps=6,
            global_batch_size=48, flops=asked.flops,
        )  # fmt: skip
        assert row.numbers == policy_numbers(outcome)
    assert [row.name for row in with_model.rows[-2:]] == ["tuned_static", "recommended"]
    assert len(with_model.rows[-2].setting.cp_degrees) == 1


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_recommended_can_run(seed, sync):
    lengths = some_lengths(seed, longest=(2000, 8000, 16_000)[seed])
    asked = modelled(given=Setting(4096, (1, 2, 4), sync))
    found = gather(asked, admitted(lengths), "numbers", quiet)
    best = found.recommended.setting
    assert fit(asked, best)[0] == FITS
    assert admission(
        lengths, topology=asked.topology, max_tokens=best.max_tokens, cp_degrees=best.cp_degrees
    ).ok
    if (best.sync, best.max_tokens) != (sync, 4096):
        assert best.max_tokens <= max(4096, asked.memory.max_tokens(best.sync, 4))
    for rows in rows_of_steps(asked, lengths.size, 3):
        made = plan(asked, lengths[rows], best, "balanced")
        check_plan(
            made, lengths[rows], max_tokens=best.max_tokens, cost=asked.cost, cp_degrees=best.cp_degrees
        )


def test_nothing_with_its_sync_is_faster_by_more_than_the_tolerance(found):
    best = found.recommended
    times = {one.setting: one.step_s for one in found.tried if one.verdict == FITS}
    same_sync = {setting: step_s for setting, step_s in times.items() if setting.sync == best.setting.sync}
    assert best.step_s == times[best.setting]
    assert best.fastest_s == min(times.values())
    assert best.step_s <= min(same_sync.values()) * (1 + CAP_TOLERANCE)
    for setting, step_s in same_sync.items():
        if setting.max_tokens == best.setting.max_tokens and setting.cp_degrees < best.setting.cp_degrees:
            assert step_s > min(same_sync.values()) * (1 + CAP_TOLERANCE)


def test_the_grid_says_what_does_not_fit():
    lengths = [*some_lengths(longest=4000), 12_000]
    found = report(lengths, given=Setting(4096, (1, 2, 4), "micro_batch"))
    verdicts = {one.setting: one.verdict for one in found.tried}
    assert verdicts[Setting(4096, (1, 2), "micro_batch")] == HOMELESS
    assert verdicts[Setting(4096, (1, 2, 4), "micro_batch")] == FITS
    assert verdicts[Setting(8192, (1, 2), "micro_batch")] == UNKNOWN
    assert verdicts[Setting(4096, (1, 2, 4), "step")] == UNKNOWN
    assert found.recommended.setting == found.question.given


def test_memory_keeps_large_caps_out(with_model):
    asked = with_model.question
    for one in with_model.tried:
        room = asked.memory.max_tokens(one.setting.sync, 4)
        today = one.setting.sync == "micro_batch" and one.setting.max_tokens <= 4096
        if one.verdict == TOO_LARGE:
            assert one.setting.max_tokens > room
        elif one.verdict == FITS and not today:
            assert one.setting.max_tokens <= room


def test_ranks_that_meet_once_a_step_are_not_asked_to_meet_more_often():
    for seed in range(3):
        found = report(some_lengths(seed))
        assert found.recommended.setting.sync == "step"


def test_gains_are_ratios_of_the_rows(found):
    best = found.best.numbers["step_time_s"]
    assert {gain.over for gain in found.gains} == {row.name for row in found.rows[:-1]}
    for one in found.gains:
        assert one.times == pytest.approx(found.row(one.over).numbers["step_time_s"] / best)
        assert one.low <= one.times <= one.high
        assert one.low_with_fit is None


def test_a_calibrated_cost_widens_the_intervals():
    fitted = FitReport(
        rows=9, measurements=30, shortest=64, longest=4096, degrees=(1,), median_error=0.04, max_error=0.1
    )
    cost = CostModel(1e-4, 1e-8, 0.01, report=fitted)
    for one in report(cost=cost).gains:
        assert one.low_with_fit < one.low
        assert one.high < one.high_with_fit


def test_an_interval_knows_constant_ratios_and_single_steps():
    steps = np.array([1.0, 5.0, 2.0])
    same = gain("x", 3 * steps, steps, fit=None)
    assert (same.times, same.low, same.high) == pytest.approx((3.0, 3.0, 3.0))
    alone = gain("x", steps[:1], steps[:1], fit=None)
    assert (alone.times, alone.low, alone.high) == (1.0, None, None)


def test_the_interval_covers_the_mean_nineteen_times_of_twenty():
    rng = np.random.default_rng(3)
    hits = 0
    for seed in range(200):
        best = rng.lognormal(0, 0.2, 40)
        found = gain("x", best * rng.lognormal(0.5, 0.3, 40), best, fit=None, seed=seed)
        truth = float(np.exp(0.5 + 0.3**2 / 2))
        hits += found.low <= truth <= found.high
    assert 175 <= hits <= 200


def test_attention_that_costs_more_changes_the_gains(found):
    assert [shift.attention for shift in found.shifts] == [0.5, 2.0]
    assert all({"padded", "equal_samples"} <= set(shift.times) for shift in found.shifts)
    shifted = found.question.with_cost(CostModel(1e-4, 2e-8, 0.01))
    again = gather(shifted, admitted(some_lengths()), "numbers", quiet)
    if again.recommended.setting == found.recommended.setting:
        expected = again.row("padded").numbers["step_time_s"] / again.best.numbers["step_time_s"]
        assert found.shifts[1].times["padded"] == pytest.approx(expected)


def test_measured_tables_have_no_coefficient_to_shift():
    table = CostModel.from_table([64, 4096, 12_000], {d: [0.01 / d, 1 / d, 4 / d] for d in (1, 2, 4)})
    assert report(cost=table, steps=2).shifts == ()


@given(
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=60),
    refused=st.lists(st.integers(4001, 10**6), max_size=5),
)
def test_every_sample_is_in_one_bin(lengths, refused):
    too_long = [("file, row 1", row, tokens) for row, tokens in enumerate(refused)]
    counted = profile(
        admitted(lengths, too_long, 2), topology=Topology(4), given=Setting(1000, (1, 2, 4), "step")
    )
    every = np.array([*lengths, *refused])
    assert (counted.samples, counted.tokens, counted.longest) == (every.size, every.sum(), every.max())
    assert (counted.refused, counted.refused_tokens, counted.empty) == (len(refused), sum(refused), 2)
    for low, high, samples, tokens in zip(
        counted.edges, counted.edges[1:], counted.bin_samples, counted.bin_tokens, strict=False
    ):
        inside = every[(low <= every) & (every < high)]
        assert (samples, tokens) == (inside.size, inside.sum())
    assert counted.bin_samples.sum() == every.size
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        assert np.mean(every <= counted.quantiles[name]) >= share
    assert sum(counted.needed_degree.values()) == len(lengths)


@given(st.integers(1, 10**7), st.integers(16, 10**5), st.integers(1, 4096), st.integers(1, 16))
def test_degrees_are_powers_of_two_that_hold_the_longest_or_reach_the_limit(longest, cap, ranks, node):
    degrees = default_degrees(longest, max_tokens=cap, topology=Topology(ranks, ranks_per_node=node))
    assert degrees == tuple(2**k for k in range(len(degrees)))
    assert degrees[-1] <= min(ranks, 64)
    assert degrees[-1] * cap >= longest or 2 * degrees[-1] > min(ranks, 64)


def test_degrees_account_for_every_sample(found):
    asked, best = found.question, found.recommended.setting
    lengths = some_lengths()
    steps = rows_of_steps(asked, lengths.size, asked.steps)
    assert sum(use.samples for use in found.degrees) == sum(rows.size for rows in steps)
    assert sum(use.tokens for use in found.degrees) == sum(int(lengths[rows].sum()) for rows in steps)
    plans = [plan(asked, lengths[rows], best, "balanced") for rows in steps]
    busy = sum(float(made.rank_time_s.sum()) for made in plans)
    assert sum(use.rank_s for use in found.degrees) == pytest.approx(busy)


def test_pictures_show_what_the_plans_say():
    asked = question(topology=Topology(100), global_batch_size=1600)
    lengths = some_lengths(samples=1600)
    made = plan(asked, lengths, asked.given, "equal_samples")
    picture = lanes("before", made)
    assert picture.shown.size == 32
    assert made.rank_time_s[picture.shown].tolist() == picture.shown_busy_s.tolist()
    assert picture.shown_busy_s[0] == made.rank_time_s.max() == picture.busy_curve_s[0]
    assert picture.shown_busy_s[-1] == made.rank_time_s.min() == picture.busy_curve_s[-1]
    for lane in range(32):
        mine = picture.lane == lane
        drawn = float((picture.end_s - picture.start_s)[mine].sum())
        assert drawn == pytest.approx(float(picture.shown_busy_s[lane]))
        assert int(picture.shown_micro_batches[lane]) == made.for_rank(int(picture.shown[lane])).size
    assert picture.end_s.max() <= picture.time_s * (1 + 1e-9)
    assert picture.idle == pytest.approx(1 - made.rank_time_s.mean() / made.time_s)


def test_many_spans_are_joined_without_losing_time():
    asked = question(topology=Topology(32), given=Setting(64, (1,), "step"))
    lengths = np.full(6000, 40)
    made = plan(asked, lengths, asked.given, "equal_samples")
    picture = lanes("before", made)
    assert picture.lane.size == 32
    assert float((picture.end_s - picture.start_s).sum()) == pytest.approx(float(made.rank_time_s.sum()))


def test_the_picture_is_of_a_step_with_the_median_gain(found):
    lengths, asked = some_lengths(), found.question
    rows = rows_of_steps(asked, lengths.size, asked.steps)[found.picture_step]
    assert found.before.time_s == plan(asked, lengths[rows], asked.given, "equal_samples").time_s
    assert found.after.time_s == plan(asked, lengths[rows], found.recommended.setting, "balanced").time_s


def test_one_giant_a_step_is_told():
    held = report(np.full(160, 4000), given=Setting(4096, (1,), "step"), global_batch_size=2)
    assert held.held_up == 1.0
    assert report(np.full(640, 400), global_batch_size=160).held_up == 0.0


def test_use_of_degrees_without_steps_is_empty():
    assert degree_use([]) == ()


def test_nothing_to_run_is_said():
    with pytest.raises(ValueError, match="no samples with tokens"):
        report([])
    with pytest.raises(ValueError, match="none of 1 samples can run"):
        report([], too_long=[("corpus.npy, row 3", 3, 99_999)])
