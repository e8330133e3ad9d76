"""Hugging Face models on packed, shared micro-batches: the gradient of unpacked samples in one process."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from balancer import runtime
from balancer.topology import Topology
from tests.runtime import tiny
from tests.runtime.test_same_gradient import LENGTHS, MIXED, gradients, relative_error
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.slow
SHAPE = {
    "vocab_size": tiny.VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def build(kind, attention):
    import transformers

    torch.manual_seed(0)
    if kind == "llama":
        config = transformers.LlamaConfig(**SHAPE)
    elif kind == "qwen3":
        config = transformers.Qwen3Config(**SHAPE, head_dim=8)
    elif kind == "mistral":  # with a sliding window
        config = transformers.MistralConfig(**SHAPE, sliding_window=7)
    config._attn_implementation = attention
    return transformers.AutoModelForCausalLM.from_config(config).double()


def expected_gradient(kind):
    model = build(kind, "sdpa")
    total = torch.zeros((), dtype=torch.float64)
    for sample, length in LENGTHS.items():
        ids = tiny.tokens_of(sample, length)
        total = total + tiny.loss_sum(model(ids[None], use_cache=False).logits[0], tiny.labels_of(ids))
    (total / sum(length - 1 for length in LENGTHS.values())).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def compare_models(rank, kinds):
    from balancer.runtime.adapters.transformers import register_attention

    groups = runtime.ContextGroups(Topology(ranks=4))
    errors = {}
    for kind in kinds:
        for recompute in (False, True):
            model = build(kind, register_attention())
            if recompute:
                model.gradient_checkpointing_enable({"use_reentrant": False})
                model.train()
            model = DistributedDataParallel(model)
            for batch, ids, positions, labels in tiny.batches_of(rank, 4, MIXED, LENGTHS, groups):
                with runtime.no_sync(model, batch):
                    logits = model(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits[
                        0
                    ]
                    runtime.scale_loss(tiny.loss_sum(logits, labels), batch).backward()
            errors[kind, recompute] = relative_error(gradients(model), expected_gradient(kind))
    return errors


def test_llama_qwen_and_mistral_have_the_gradient_of_unpacked_samples():
    for errors in run_ranks(compare_models, 4, ("llama", "qwen3", "mistral")):
        assert max(errors.values()) < 1e-9, errors


def compare_vision(rank):
    """Qwen2.5-VL's decoder with its three-axis positions, and its vision tower on the same attention."""
    import transformers

    from balancer.runtime.adapters.transformers import register_attention

    text = {**SHAPE, "vocab_size": 64, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    vision = {
        "depth": 2,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": 32,
        "patch_size": 4,
        "fullatt_block_indexes": [1],
        "window_size": 16,
    }
    special = {
        "image_token_id": 60,
        "video_token_id": 61,
        "vision_start_token_id": 62,
        "vision_end_token_id": 63,
    }

    def make(attention):
        torch.manual_seed(0)
        config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **special)
        for part in (config, config.text_config, config.vision_config):
            part._attn_implementation = attention
        return transformers.Qwen2_5_VLForConditionalGeneration(config).double()

    def sample(number, grid):
        generator = torch.Generator().manual_seed(number)
        words = torch.randint(0, 50, (9,), generator=generator)
        tokens = grid[0] * grid[1] * grid[2] // 4
        ids = torch.cat(
            [words[:4], torch.tensor([62]), torch.full((tokens,), 60), torch.tensor([63]), words[4:]]
        )
        pixels = torch.randn(grid[0] * grid[1] * grid[2], 3 * 2 * 4 * 4, generator=generator).double()
        return ids, pixels, torch.tensor([grid])

    samples = [sample(0, (1, 4, 4)), sample(1, (1, 8, 4)), sample(2, (1, 4, 12))]
    reference = make("sdpa")
    total, positions = 0.0, []
    for ids, pixels, grid in samples:
        types = (ids == 60).long()[None]
        places, _ = reference.model.get_rope_index(ids[None], image_grid_thw=grid, mm_token_type_ids=types)
        positions.append(places)
        out = reference(
            input_ids=ids[None],
            pixel_values=pixels,
            image_grid_thw=grid,
            position_ids=places,
            use_cache=False,
        )
        total = total + tiny.loss_sum(out.logits[0], tiny.labels_of(ids))
    total.backward()
    expected = {name: p.grad for name, p in reference.named_parameters() if p.grad is not None}

    model = make(register_attention())
    ids = torch.cat([s[0] for s in samples])
    labels = torch.cat([tiny.labels_of(s[0]) for s in samples])
    lengths = torch.tensor([len(s[0]) for s in samples])
    with runtime.running(runtime_batch(lengths)):
        out = model(
            input_ids=ids[None],
            pixel_values=torch.cat([s[1] for s in samples]),
            image_grid_thw=torch.cat([s[2] for s in samples]),
            position_ids=torch.cat(positions, dim=2),
            use_cache=False,
        )
        tiny.loss_sum(out.logits[0], labels).backward()
    got = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert got.keys() == expected.keys()
    return relative_error(got, expected)


def runtime_batch(lengths):
    from tests.runtime.batches import PlainBatch

    return PlainBatch(seq_lengths=lengths)


def test_a_vision_language_model_has_the_gradient_of_unpacked_samples():
    (error,) = run_ranks(compare_vision, 1)
    assert error < 1e-9
