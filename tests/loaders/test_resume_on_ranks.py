"""U33: real ranks with workers stop after any number of batches and go on in fresh processes."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest

from balancer import CostModel
from loaders import DataLoader
from tests.loaders.arrays import ArraySource
from tests.support.ranks import run_ranks

LENGTHS = np.random.default_rng(5).integers(1, 60, 40)


def make(num_workers=2):
    """The rank and its peers come from torch.distributed."""
    multiprocessing.current_process()._config["daemon"] = False  # which may have no workers
    return DataLoader(
        ArraySource(LENGTHS),
        batch_size=4,
        shuffle=True,
        seed=3,
        max_tokens=48,
        cp_degrees=(1, 2),
        cost=CostModel(linear=1e-4, quadratic=1e-7, fixed=1e-4),
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )


def told_by(batch):
    return {
        "place": (batch.step, batch.slot, batch.last_in_step, batch.cp_degree, batch.cp_rank),
        "samples": batch.sample_ids.tolist(),
        "tokens": batch["input_ids"].tolist(),
        "borders": batch["cu_seq_lens_q"].tolist(),
        "labels": batch["shift_labels"].tolist(),
    }


def uninterrupted(rank):
    """All batches of an epoch, and the state before the first and behind each."""
    loader = make()
    told, states = [], [loader.state_dict()]
    for batch in loader:
        told.append(told_by(batch))
        states.append(loader.state_dict())
    return told, states


def resumed(rank, states, order):
    """What follows each state, in loaders of their own."""
    rests = []
    for state in states:
        loader = make()
        if order == "after":
            old = iter(loader)
            next(old)
            loader.load_state_dict(state)
            with pytest.raises(RuntimeError, match="a state was loaded"):
                next(old)
            del old
        else:
            loader.load_state_dict(state)
        rests.append([told_by(batch) for batch in loader])
    return rests


@pytest.mark.slow
def test_u33_real_ranks_with_workers_go_on_exactly_after_every_batch():
    whole = run_ranks(uninterrupted, 2)
    told = [batches for batches, _ in whole]
    states = [saved for _, saved in whole]
    steps = 1 + max(batch["place"][0] for batch in told[0])
    assert steps == 5
    assert max(map(len, told)) > 2 * steps  # packs: several micro-batches a step
    assert {batch["place"][3] for batch in told[0]} == {1, 2}
    at = {state["step"]: state for state in states[0]}
    assert all(at[state["step"]] == state for saved in states for state in saved)  # equal on both ranks
    stops = max(states, key=len)  # of the rank with more batches; in the middle of a step it begins anew
    for order in ("before", "after"):
        rests = run_ranks(resumed, 2, stops, order, timeout_s=900)
        for rank in range(2):
            for state, rest in zip(stops, rests[rank], strict=True):
                if state["epoch"] == 0:
                    assert rest == [batch for batch in told[rank] if batch["place"][0] >= state["step"]]
                else:  # behind the last batch the next epoch is due
                    assert rest[0]["place"][0] == state["step"] == steps
                    assert rest != told[rank]
