"""Law 2 over streams: however samples move between ranks, a step's gradient is that of one process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import IterableDataset

from balancer import CostModel, runtime
from loaders import DataLoader
from tests.runtime import reference, tiny
from tests.support.ranks import run_ranks

LENGTHS = ([50, 9, 21, 4, 60, 2, 33], [7, 1, 40], [12] * 5)
"""Of each rank's samples; the second stream ends first."""
COST = CostModel(linear=1e-6, quadratic=1e-8, fixed=1e-5)
SIZE = 4


def sample_of(rank, row):
    """(token ids, unshifted labels): some masked on the second rank."""
    ids = tiny.tokens_of(100 * rank + row, LENGTHS[rank][row])
    labels = ids.clone()
    if rank == 1:
        labels[::3] = -100
    return ids, labels


class Samples(IterableDataset):
    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        for row in range(len(LENGTHS[self.rank])):
            yield tuple(part.numpy() for part in sample_of(self.rank, row))


def gradient_of_one_process(samples):
    """Each sample by itself, unpacked, with plain attention."""
    model = tiny.build(torch.float64)
    total, weight = torch.zeros((), dtype=torch.float64), 0
    for rank, row in samples:
        ids, labels = sample_of(rank, row)
        shifted = torch.cat([labels[1:], torch.tensor([-100])])
        size = len(ids)
        logits = model(ids, torch.arange(size), lambda q, k, v, n=size: reference.attend(q, k, v, [n]))
        total = total + tiny.loss_sum(logits, shifted)
        weight += int((shifted != -100).sum())
    (total / weight).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def error_of(model, samples):
    expected = gradient_of_one_process(samples)
    got = {name.removeprefix("module."): p.grad for name, p in model.named_parameters()}
    difference = sum(float((got[name] - expected[name]).square().sum()) for name in expected)
    return (difference / sum(float(g.square().sum()) for g in expected.values())) ** 0.5


def train(rank, ranks, degrees, sync):
    keys = sorted((row, stream) for stream in range(ranks) for row in range(len(LENGTHS[stream])))
    order = [(stream, row) for row, stream in keys]
    model = DistributedDataParallel(tiny.build(torch.float64))
    loader = DataLoader(
        Samples(rank),
        global_batch_size=SIZE,
        max_tokens=40,
        cp_degrees=degrees,
        sync=sync,
        cost=COST,
        exchange=True,
    )
    errors, used = [], set()
    for batch in loader:
        used.add(batch.cp_degree)
        with runtime.no_sync(model, batch):
            logits = model(
                batch["input_ids"][0],
                batch["position_ids"][0] % tiny.LONGEST,
                lambda q, k, v, b=batch: runtime.attention(q, k, v, b),
            )
            loss = tiny.loss_sum(logits, batch["shift_labels"][0])
            runtime.scale_loss(loss, batch).backward()
        if batch.last_in_step:
            samples = order[batch.step * SIZE : (batch.step + 1) * SIZE]
            errors.append(error_of(model, samples))
            model.zero_grad()
    return errors, used


def train_all(rank, ranks, settings):
    return [train(rank, ranks, *setting) for setting in settings]


@pytest.mark.parametrize(
    ("ranks", "settings"), [(2, (((1, 2), "step"), ((2,), "micro_batch"))), (3, (((1, 3), "step"),))]
)
def test_a_step_over_exchanged_streams_has_the_gradient_of_one_process(ranks, settings):
    steps = -(-sum(map(len, LENGTHS[:ranks])) // SIZE)
    for results in run_ranks(train_all, ranks, ranks, settings):
        for (degrees, _), (errors, used) in zip(settings, results, strict=True):
            assert len(errors) == steps
            assert np.max(errors) < 1e-9
            assert max(used) == max(degrees)
