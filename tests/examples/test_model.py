import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model import Transformer, rotary, token_losses
from padded import pad

torch.set_num_threads(1)


def small_model(seed=0):
    torch.manual_seed(seed)
    return Transformer(vocabulary=50, width=16, layers=2, heads=2).double()


def samples_of(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 50, (length,), generator=generator) for length in lengths]


def packed(samples):
    lengths = [0, *(sample.numel() for sample in samples)]
    return {
        "input_ids": torch.cat(samples)[None],
        "position_ids": torch.cat([torch.arange(length) for length in lengths[1:]])[None],
        "cu_seq_lens_q": torch.tensor(lengths).cumsum(0).int(),
        "shift_labels": torch.cat([torch.cat([sample[1:], torch.tensor([-100])]) for sample in samples])[
            None
        ],
    }


@settings(max_examples=15)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_packed_padded_and_single_samples_have_the_same_losses(lengths):
    model, samples = small_model(), samples_of(lengths)
    alone = torch.cat([token_losses(model, packed([sample])) for sample in samples])
    together = token_losses(model, packed(samples))
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
    side_by_side = token_losses(model, pad(list(enumerate(samples)))).view(len(samples), -1)
    real = torch.cat([losses[:length] for losses, length in zip(side_by_side, lengths, strict=True)])
    torch.testing.assert_close(real, alone, rtol=1e-12, atol=1e-12)


def test_a_token_sees_no_later_token_and_no_other_sample():
    model, samples = small_model(), samples_of([6, 5])
    changed = [samples[0].clone(), samples[1]]
    changed[0][3] = (changed[0][3] + 1) % 50
    batches = packed(samples), packed(changed)
    before, after = (model(b["input_ids"], b["position_ids"], b["cu_seq_lens_q"])[0] for b in batches)
    same = (before == after).all(dim=-1)
    assert same.tolist() == [True] * 3 + [False] * 3 + [True] * 5


def test_rotation_depends_on_distance_alone():
    x = torch.randn(1, 2, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    at = [rotary(x, torch.tensor([[start, start + 3]])) for start in (0, 7)]
    products = [(rotated[0, 0] * rotated[0, 1]).sum() for rotated in at]
    torch.testing.assert_close(products[0], products[1], rtol=1e-12, atol=0.0)


def test_padding_has_no_label():
    batch = pad([(7, torch.tensor([1, 2, 3])), (9, torch.tensor([4]))])
    assert batch["shift_labels"].tolist() == [[2, 3, -100], [-100, -100, -100]]
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert batch["rows"] == [7, 9]
