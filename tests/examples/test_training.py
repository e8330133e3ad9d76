"""Training on 2 ranks, balanced and packed, is training of one process on the same samples, unpacked."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.optim import SGD

from balancer import Topology
from tests.examples.on_ranks import (
    VOCABULARY,
    backward_one_by_one,
    flat_gradient,
    gradients_of_step,
    make_loader,
    make_model,
    read_pieces,
    run_epochs,
    train_curves,
)
from tests.support.ranks import run_ranks

POLICIES = ("equal_samples", "balanced")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}


def write_rows(path, num_rows, seed):
    """Heavy-tailed rows of random tokens: 2 to 600 of them, median 30."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(np.exp(rng.normal(3.4, 1.2, num_rows)), 2, 600).astype(int)
    rows = [rng.integers(0, VOCABULARY, length).astype(np.int32) for length in lengths]
    pq.write_table(pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32()))}), path)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A corpus of two sources."""
    folder = tmp_path_factory.mktemp("rows")
    return [write_rows(folder / f"{name}.parquet", 40, seed) for seed, name in enumerate("ab")]


def test_gradient_of_a_step_is_that_of_one_process_unpacked(files):
    cases = list(itertools.product(TOLERANCE, POLICIES, (600, 150)))  # 150 tokens: rows are split, many packs
    by_rank = run_ranks(gradients_of_step, 2, files, cases)
    for number, (dtype, policy, max_tokens) in enumerate(cases):
        gradients = [outcome[number][0] for outcome in by_rank]
        np.testing.assert_array_equal(gradients[0], gradients[1])
        runs = [run for outcome in by_rank for run in outcome[number][1]]
        pieces = [piece for run in runs for piece in read_pieces(files, *run)]
        model = make_model(dtype)
        backward_one_by_one(model, pieces)
        expected = flat_gradient(model)
        error = np.linalg.norm(gradients[0] - expected) / np.linalg.norm(expected)
        assert error < TOLERANCE[dtype], (dtype, policy, max_tokens)
        assert max(map(len, pieces)) <= max_tokens


def test_loss_curves_lie_on_each_other_and_on_that_of_a_single_process(files):
    num_steps = 8
    curves = run_ranks(train_curves, 2, files, POLICIES, num_steps)[0]
    model = make_model()
    optimizer = SGD(model.parameters(), lr=0.5)
    curve = []
    for pieces in itertools.islice(steps_of_one_process(files), num_steps):
        curve.append(backward_one_by_one(model, pieces))
        optimizer.step()
        optimizer.zero_grad()
    assert curve[0] > curve[-1] + 0.05, "the model learns, so a curve tells steps apart"
    for policy in POLICIES:
        np.testing.assert_allclose(curves[policy], curve, rtol=1e-9)


def steps_of_one_process(files):
    """The samples of each step as a loader on one rank gives them: steps depend on the order alone."""
    one_rank = {"topology": Topology(ranks=1), "rank": 0}
    pieces = []
    for batch in make_loader(files, "balanced", 8, True, 200, **one_rank):
        run = batch.sample_ids[:, 1].tolist(), batch.starts.tolist(), batch.seq_lengths.tolist()
        pieces += read_pieces(files, *run)
        if batch.last_in_step:
            yield pieces
            pieces = []


@pytest.mark.parametrize("num_rows", [(13, 20), (40, 7), (1,)], ids=["33", "47", "fewer than ranks"])
def test_an_epoch_of_an_awkward_number_of_samples_ends_on_both_ranks_with_nothing_lost(tmp_path, num_rows):
    files = [
        write_rows(tmp_path / f"{seed}.parquet", rows, seed) for seed, rows in enumerate(num_rows) if rows
    ]
    lengths = [len(row) for file in files for row in pq.read_table(file)["input_ids"].to_pylist()]
    cases = [(files, policy, 4, max_tokens) for policy in POLICIES for max_tokens in (150, 600)]
    by_rank = run_ranks(run_epochs, 2, cases)
    every_token = [(row, token) for row, length in enumerate(lengths) for token in range(length)]
    for number, (_, _, _, max_tokens) in enumerate(cases):
        (first, weights), (second, other_weights) = (outcome[number] for outcome in by_rank)
        assert weights == other_weights
        assert len(first) == len(second) == -(-len(lengths) // 8)
        for batches in first + second:
            assert [last for _, _, last in batches] == [False] * (len(batches) - 1) + [True]
        batches = itertools.chain(*first, *second)
        # an idle rank's dummy token is no sample
        given = [piece for runs, sizes, _ in batches for piece in zip(runs, sizes, strict=False)]
        tokens = [(row, start + token) for (row, start), size in given for token in range(size)]
        assert sorted(tokens) == every_token
        assert max(size for _, size in given) <= max_tokens


def test_make_loader_gives_the_policies_the_same_steps(files):
    orders = [list(make_loader(files, policy, 4, True, 200).batch_sampler) for policy in POLICIES]
    assert orders[0] == orders[1]
