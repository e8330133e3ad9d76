"""A model that ignores the borders of packed samples is told; one that keeps to them is not."""

import numpy as np
import pytest
import torch

from balancer import runtime
from loaders import DataLoader
from tests.runtime.batches import PlainBatch

VOCABULARY, WIDTH = 23, 8


class Tiny(torch.nn.Module):
    """One layer of attention; ``borders`` says what tells samples apart, ``window`` how far it sees."""

    def __init__(self, borders="cu_seq_lens_q", window=10**6, causal=True):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.drop = torch.nn.Dropout(0.5)
        self.frozen = torch.nn.Linear(WIDTH, VOCABULARY).eval()
        self.borders, self.window, self.causal = borders, window, causal

    def forward(self, input_ids, **inputs):
        x = self.embed(input_ids[0])
        place = torch.arange(len(x))
        away = place[:, None] - place[None, :]
        seen = away.abs() < self.window
        if self.causal:
            seen &= away >= 0
        if self.borders is not None:
            sample = torch.bucketize(place, inputs[self.borders][1:], right=True)
            seen &= sample[:, None] == sample[None, :]
        scores = (x @ x.T / WIDTH).masked_fill(~seen, -torch.inf)
        return self.frozen(self.drop(x + scores.softmax(-1) @ x))[None]


def batch_of(lengths=(9, 1, 4, 7, 3), **options):
    rows = [{"input_ids": (np.arange(n) * 5 + n) % VOCABULARY} for n in lengths]
    return next(iter(DataLoader(rows, batch_size=len(rows), max_tokens=64, **options)))


@pytest.mark.parametrize("causal", [True, False])
def test_a_model_that_keeps_to_the_borders_passes(causal):
    runtime.check_isolation(Tiny(causal=causal), batch_of())


@pytest.mark.parametrize("window", [2, 10**6])
def test_a_model_that_ignores_them_is_told_of_every_sample_that_saw_another(window):
    with pytest.raises(RuntimeError, match=r"samples \[1, 2, 3, 4\] of 5 .* attn_implementation="):
        runtime.check_isolation(Tiny(None, window), batch_of())


def test_one_that_looks_both_ways_shows_in_the_first_sample_too():
    with pytest.raises(RuntimeError, match=r"samples \[0, 1, 2, 3, 4\] of 5"):
        runtime.check_isolation(Tiny(None, causal=False), batch_of())


def test_only_the_samples_behind_a_missing_border_are_named():
    model = Tiny()

    def forward(batch):
        borders = batch["cu_seq_lens_q"]
        return model(batch["input_ids"], cu_seq_lens_q=torch.cat([borders[:2], borders[3:]]))

    batch = batch_of()
    with pytest.raises(RuntimeError, match=r"samples \[2\] of 5"):
        runtime.check_isolation(model, batch, forward)


def test_padding_behind_the_samples_is_no_sample():
    runtime.check_isolation(Tiny(), batch_of(pad_to=64))
    with pytest.raises(RuntimeError, match=r"samples \[1, 2, 3, 4\] of 5"):
        runtime.check_isolation(Tiny(None), batch_of(pad_to=64))


def test_attention_learns_which_batch_runs():
    model = Tiny()

    def forward(batch):
        x = model.embed(batch["input_ids"][0])[:, None]
        return runtime.attention(x, x, x, runtime.current_batch())[None]

    runtime.check_isolation(model, batch_of(), forward)
    assert runtime.current_batch() is None


@pytest.mark.parametrize("borders", ["cu_seq_lens_q", None])
def test_modes_batch_and_gradients_are_as_they_were(borders):
    model, batch = Tiny(borders), batch_of()
    ids = batch["input_ids"].clone()
    try:
        runtime.check_isolation(model, batch)
    except RuntimeError:
        assert borders is None
    assert (model.training, model.drop.training, model.frozen.training) == (True, True, False)
    assert torch.equal(batch["input_ids"], ids)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_batch_on_which_nothing_shows_gets_a_sentence():
    with pytest.raises(ValueError, match="1 samples"):
        runtime.check_isolation(Tiny(), batch_of([5]))
    with pytest.raises(ValueError, match="1 ids"):
        runtime.check_isolation(Tiny(), batch_of([1, 1, 1]))

    class Shared(PlainBatch, dict):
        pass

    shared = Shared(cp_degree=2, seq_lengths=np.asarray([4, 4]))
    shared["input_ids"] = torch.arange(8)[None]
    with pytest.raises(ValueError, match="degree 2"):
        runtime.check_isolation(Tiny(), shared)


@pytest.mark.parametrize(
    ("out", "told"),
    [(torch.ones(1, 3), r"\(1, 3\)"), (torch.full((1, 24, 2), torch.nan), "without NaN"), ((), "got tuple")],
)
def test_outputs_that_cannot_be_compared_get_a_sentence(out, told):
    with pytest.raises(ValueError, match=rf"\[1, 24, \.\.\.\] .*{told}"):
        runtime.check_isolation(Tiny(), batch_of(), lambda batch: out)


def test_a_hugging_face_model_is_judged_by_its_attention_and_by_what_it_is_given():
    pytest.importorskip("transformers")
    from balancer.runtime.adapters.transformers import register_attention
    from examples.integrations.common import tiny_llama

    runtime.check_isolation(tiny_llama(register_attention()), batch_of())
    model = tiny_llama("eager")

    def without_positions(batch):
        return model(input_ids=batch["input_ids"], use_cache=False).logits

    with pytest.raises(RuntimeError, match=r"samples \[1, 2, 3, 4\] of 5 .* use_cache=False"):
        runtime.check_isolation(model, batch_of(), without_positions)
