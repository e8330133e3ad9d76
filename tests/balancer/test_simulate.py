"""Laws of the simulator: many steps of every policy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer import POLICIES, CostModel, Topology, simulate
from balancer.comparison import compare_policies, shuffled_steps
from balancer.simulation import ModelFlops
from balancer.simulation.run import epochs
from packing.table import SampleTable

COST = CostModel(1e-4, 1e-8, 0.02)
LENGTHS = np.minimum(np.random.default_rng(0).lognormal(6, 1.2, 300), 4096).astype(np.int64) + 1
SETTING = {"max_tokens": 8192, "cost": COST, "global_batch_size": 75}


def run(ranks=4, lengths=LENGTHS, **options):
    return simulate(lengths, **{"topology": Topology(ranks), **SETTING, **options})


def one(**options):
    return run(policies=["balanced"], **options)[0]


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
def test_a_quiet_cluster_takes_what_the_planner_predicts(sync):
    steps = shuffled_steps(LENGTHS.size, 75)
    options = {"topology": Topology(4), "max_tokens": 8192, "cost": COST, "sync": sync}
    compared = compare_policies(LENGTHS, steps, POLICIES, **options)
    for outcome, predicted in zip(run(sync=sync), compared, strict=True):
        assert outcome.policy == predicted.policy
        assert outcome.time_s == pytest.approx(predicted.time_s)
        assert outcome.planned_s.sum() == pytest.approx(predicted.time_s)
        assert outcome.idle == pytest.approx(predicted.idle, abs=1e-9)
        assert outcome.tokens_per_s == pytest.approx(predicted.tokens_per_s)
        assert outcome.rank_busy_s.sum() == pytest.approx(outcome.busy_s.sum())
        assert 0 < outcome.memory.max() <= 1
        assert outcome.held_tokens.max() == pytest.approx(outcome.memory.max() * 8192)


@given(seed=st.integers(0, 99), jitter=st.sampled_from([0.0, 0.1]), stages=st.integers(1, 3))
@settings(max_examples=15)
def test_equal_seeds_give_equal_columns(seed, jitter, stages):
    topology = Topology(3, pipeline_stages=stages)
    a, b = (one(topology=topology, jitter=jitter, seed=seed, steps=2) for _ in range(2))
    for name in ("step_s", "planned_s", "tokens", "busy_s", "held_tokens", "memory", "rank_busy_s"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name


def test_all_policies_meet_the_same_steps_and_the_same_jitter():
    # one rank and one micro-batch each: the plans of these policies are equal, so must their times be
    names = ["equal_samples", "equal_tokens", "static_cp"]
    outcomes = run(ranks=1, policies=names, jitter=0.3, max_tokens=10**6)
    for other in outcomes[1:]:
        assert np.array_equal(other.tokens, outcomes[0].tokens)
        assert other.step_s == pytest.approx(outcomes[0].step_s)


def test_jitter_slows_a_step_as_the_largest_of_as_many_draws_does():
    """Equal micro-batches: the step takes the largest pace, whose mean is found by drawing it otherwise."""
    ranks, sigma, steps = 64, 0.1, 400
    outcome = one(
        ranks=ranks,
        lengths=np.full(ranks, 100),
        global_batch_size=ranks,
        steps=steps,
        jitter=sigma,
        max_tokens=100,
    )
    z = np.random.default_rng(1).standard_normal((20_000, ranks)).max(axis=1)
    expected = np.exp(sigma * z - sigma**2 / 2).mean()
    assert outcome.mean_s / outcome.planned_s.mean() == pytest.approx(expected, rel=0.01)
    # the mean pace is 1, so that jitter moves no work
    assert outcome.busy_s.sum() == pytest.approx(ranks * outcome.planned_s.sum(), rel=0.01)
    low, middle, high, _ = outcome.quantiles_s()
    assert low < middle < high


def test_a_straggler_slows_every_step_and_a_planner_that_knows_it_slows_less():
    quiet, surprised = one(), one(stragglers={2: 0.5})
    known = one(topology=Topology(4, speed=np.array([1.0, 1.0, 0.5, 1.0])))
    assert surprised.time_s == pytest.approx(2 * quiet.time_s, rel=0.05)
    assert quiet.time_s < known.time_s < 0.7 * surprised.time_s
    assert surprised.rank_busy_s.argmax() == 2
    assert surprised.idle > known.idle


def test_stages_multiply_the_gpus_and_an_uneven_one_idles_the_others():
    topology = Topology(2, pipeline_stages=4)
    even = one(topology=topology)
    uneven = one(topology=topology, stage_multipliers=(1.0, 1.0, 1.0, 1.5))
    assert even.gpus == 8
    assert even.rank_busy_s.sum() * 4 == pytest.approx(even.busy_s.sum())
    assert uneven.time_s > 1.3 * even.time_s
    assert uneven.idle > even.idle > 0
    assert even.memory.max() <= 1 < even.held_tokens.max() / 8192


def test_overhead_is_idle_time():
    plain, longer = one(), one(overhead_s=1.0)
    assert longer.step_s == pytest.approx(plain.step_s + 1)
    assert longer.busy_s == pytest.approx(plain.busy_s)


@pytest.mark.parametrize("ranks", [1, 16_384])
def test_one_rank_and_sixteen_thousand(ranks):
    lengths = np.random.default_rng(0).integers(1, 2000, 4 * ranks)
    outcome = one(ranks=ranks, lengths=lengths, global_batch_size=lengths.size, jitter=0.02)
    assert len(outcome) == 1
    assert outcome.tokens.sum() == lengths.sum()
    assert outcome.rank_busy_s.shape == (ranks,)
    assert outcome.step_s[0] > outcome.lower_bound_s[0] * 0.9


def test_padding_counts_as_memory_but_not_as_tokens():
    padded, packed = run(policies=["padded", "equal_samples"])
    assert np.array_equal(padded.tokens, packed.tokens)
    assert padded.tokens_per_s < packed.tokens_per_s


def test_epochs_hold_every_sample_once_and_are_shuffled_anew():
    steps = list(epochs(10, 4, 6, seed=0))
    assert [rows.size for rows in steps] == [4, 4, 2, 4, 4, 2]
    first, second = np.concatenate(steps[:3]), np.concatenate(steps[3:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(10))
    assert first.tolist() != second.tolist()
    assert len(list(epochs(10, 4, None, seed=0))) == 3
    assert list(epochs(0, 4, 5, seed=0)) == []


def test_a_table_gives_what_its_lengths_give():
    table = SampleTable.from_lengths(LENGTHS)
    assert np.array_equal(one(lengths=table).step_s, one().step_s)


def test_no_samples_no_steps():
    outcome = one(lengths=np.zeros(0, int))
    assert (len(outcome), outcome.mean_s, outcome.idle, outcome.tokens_per_s, outcome.mfu) == (
        0,
        0,
        0,
        0,
        None,
    )
    assert outcome.quantiles_s().tolist() == [0, 0, 0, 0]


def test_mfu_is_unknown_without_flops_and_a_share_of_the_peak_with_them():
    assert one().mfu is None
    # at this peak the cost model's seconds are those of the FLOPs, so that MFU is the busy share
    flops = ModelFlops(per_token=1e8, per_pair=1e4, peak=1e12)
    cost = CostModel(1e-4, 1e-8)
    outcome = one(cost=cost, flops=flops)
    assert outcome.mfu == pytest.approx(1 - outcome.idle, rel=1e-6)


def test_flops_of_a_model_are_six_a_weight_and_token_and_twelve_a_channel_and_pair():
    config = {
        "model_type": "gpt2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 256, "vocab_size": 1000,
    }  # fmt: skip
    flops = ModelFlops.from_config(config, gpu="a100", tensor_parallel=2)
    assert flops.per_token == pytest.approx(6 * (2 * 12 * 64**2 + 1000 * 64))
    assert flops.per_pair == pytest.approx(12 * 64 * 2)
    assert flops.peak == 2 * 312e12
    assert flops([3, 1]) == pytest.approx(4 * flops.per_token + 7 * flops.per_pair)


def test_a_policy_that_cannot_plan_carries_the_reason():
    outcome = one(lengths=np.array([10, 9000]))
    assert "row" in outcome.error
    assert "9000" in outcome.error
    assert len(outcome) == 0


def test_progress_is_told_after_every_step():
    told = []
    run(policies=["equal_tokens", "balanced"], steps=2, progress=lambda *news: told.append(news))
    assert told == [("equal_tokens", 1), ("equal_tokens", 2), ("balanced", 1), ("balanced", 2)]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"policies": ["fair"]}, "policies must be one of .*, got 'fair'"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"global_batch_size": 0}, "global_batch_size must be .* got 0"),
        ({"jitter": -1.0}, "jitter must be .* got -1.0"),
        ({"stragglers": {4: 0.5}}, r"stragglers must name ranks 0\.\.3, got 4"),
        ({"stragglers": {1: 0.0}}, "rank 1 has 0.0. A rank that stands still stops the job"),
        ({"stage_multipliers": (1.0, 2.0)}, "stage_multipliers must hold 1 finite positive"),
        ({"forward_share": 2.0}, "forward_share"),
        ({"overhead_s": -1.0}, "overhead_s must be .* got -1.0"),
    ],
)
def test_bad_arguments_get_a_sentence(options, what):
    with pytest.raises(ValueError, match=what):
        run(**options)
