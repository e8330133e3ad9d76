"""Counts against published parameter counts: a matrix product costs two FLOPs for each weight it uses."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from balancer.cost import GPUS, CostModel, Gpu
from balancer.costs.memory import estimate_memory
from balancer.costs.shapes import model_shape

LLAMA_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
}
LLAMA3_8B = {**LLAMA_7B, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}
MIXTRAL = {
    **LLAMA_7B,
    "model_type": "mixtral",
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (LLAMA_7B, 6.738 - 0.131),  # all parameters less the input embedding
        (LLAMA3_8B, 8.030 - 0.525),
        (MIXTRAL, 12.9 - 0.13),  # active
        (DEEPSEEK_V3, 37.5 - 0.93),  # active
        (QWEN3_30B_A3B, 3.35 - 0.31),  # active
        (GPT2, 0.124 - 0.0008),  # tied embedding: used in the head; positions are looked up
    ],
    ids=["llama-7b", "llama3-8b", "mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b", "gpt2"],
)
def test_flops_per_token_match_the_active_parameters(config, billions):
    shape = model_shape(config)
    assert (shape.layer_flops + shape.head_flops) / 2e9 == pytest.approx(billions, rel=0.01)


def test_attention_counts_heads_and_latent_widths():
    assert model_shape(LLAMA3_8B).pair_flops == 4 * 4096
    assert model_shape(LLAMA3_8B).kv_width == 2 * 8 * 128
    assert model_shape(DEEPSEEK_V3).pair_flops == 2 * 128 * (192 + 128)


def test_a_7b_model_on_a100_comes_near_flexsps_measurement():
    derived = CostModel.from_config(LLAMA_7B, gpu="a100")
    measured = CostModel.preset("flexsp-a100-7b")
    for n in (4096, 35_900, 131_072):
        assert derived([n])[0] == pytest.approx(measured([n])[0], rel=0.2)


@pytest.mark.parametrize(
    ("change", "attention"),
    [
        ({}, "causal"),
        ({"sliding_window": 4096}, "window:4096"),
        ({"sliding_window": 4096, "use_sliding_window": False}, "causal"),
        ({"sliding_window": 64, "max_window_layers": 8}, "8*causal + 24*window:64"),
        ({"sliding_window": 512, "sliding_window_pattern": 4}, "8*causal + 24*window:512"),
        ({"layer_types": ["linear_attention"] * 24 + ["full_attention"] * 8}, "8*causal + 24*linear"),
        ({"layer_types": ["chunked_attention", "full_attention"] * 16, "attention_chunk_size": 8192},
         "16*causal + 16*chunked:8192"),
        ({"attention_chunk_size": 8192}, "8*causal + 24*chunked:8192"),
        ({"attn_layer_period": 8, "attn_layer_offset": 4}, "4*causal + 28*linear"),
        ({"attn_layer_indices": [3, 9]}, "2*causal + 30*linear"),
        ({"hybrid_override_pattern": "M-M*-M-*-"}, "2*causal + 3*linear"),
        ({"model_type": "bert"}, "full"),
    ],
)  # fmt: skip
def test_layer_kinds_become_attention_patterns(change, attention):
    assert model_shape({**LLAMA_7B, **change}).attention == attention


def test_equal_layers_and_their_written_out_stack_cost_the_same():
    plain = CostModel.from_config(LLAMA_7B)
    half_linear = CostModel.from_config(
        {**LLAMA_7B, "layer_types": ["full_attention", "linear_attention"] * 16}
    )
    assert plain.attention == "causal"
    pairs = 8192 * 8193 // 2
    assert plain.quadratic * pairs == pytest.approx(2 * half_linear.quadratic * 16 * pairs)


def test_recomputation_adds_a_forward_pass():
    none, attention, full = (
        CostModel.from_config(LLAMA_7B, recompute=mode) for mode in ("none", "attention", "full")
    )
    assert attention.linear == none.linear
    assert attention.quadratic == full.quadratic == pytest.approx(none.quadratic * 4.5 / 3.5)
    shape = model_shape(LLAMA_7B)
    layers, head = shape.layer_flops, shape.head_flops
    assert full.linear / none.linear == pytest.approx((4 * layers + 3 * head) / (3 * layers + 3 * head))


def test_parallel_shares_divide_the_work():
    whole, staged = CostModel.from_config(LLAMA_7B), CostModel.from_config(LLAMA_7B, pipeline_stages=4)
    assert staged([5000])[0] == pytest.approx(whole([5000])[0] / 4)
    sliced = CostModel.from_config(LLAMA_7B, tensor_parallel=8)
    assert whole.linear / 8 < sliced.linear < whole.linear  # all-reduces eat part of the gain
    assert sliced.quadratic == pytest.approx(whole.quadratic / 8)


def test_ring_hides_behind_attention_and_ulysses_does_not():
    costs = {m: CostModel.from_config(LLAMA_7B, cp_method=m) for m in ("ring", "all_gather", "ulysses")}
    long, short = 131_072, 1024
    compute_s = {n: costs["ring"]([n])[0] / 8 for n in (long, short)}
    assert costs["ring"]([long], 8)[0] == pytest.approx(compute_s[long])
    assert costs["ring"]([short], 8)[0] > compute_s[short]
    assert costs["all_gather"]([long], 8)[0] > compute_s[long]
    assert compute_s[long] < costs["ulysses"]([long], 8)[0] < costs["all_gather"]([long], 8)[0]


@pytest.mark.parametrize("gpu", sorted(GPUS))
def test_every_gpu_gives_a_model_that_names_it(gpu):
    cost = CostModel.from_config(LLAMA_7B, gpu=gpu.upper())
    assert gpu in cost.source
    assert cost.linear > 0


def test_a_gpu_may_be_numbers():
    by_name = CostModel.from_config(LLAMA_7B, gpu="h100")
    assert CostModel.from_config(LLAMA_7B, gpu=989e12).linear == by_name.linear
    assert CostModel.from_config(LLAMA_7B, gpu={"flops": 989e12}).quadratic == by_name.quadratic
    half = Gpu(name="half", flops=989e12 / 2, intra_node=1e11, inter_node=1e10)
    assert CostModel.from_config(LLAMA_7B, gpu=half).linear == pytest.approx(2 * by_name.linear)


def test_a_config_may_be_an_object_or_hold_the_language_part():
    expected = CostModel.from_config(LLAMA_7B)
    assert CostModel.from_config(SimpleNamespace(**LLAMA_7B)) == expected
    assert CostModel.from_config({"text_config": LLAMA_7B, "vision_config": {}}) == expected


def test_a_config_may_be_the_path_of_its_file_or_folder(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_7B))
    expected = CostModel.from_config(LLAMA_7B)
    for given in (path, str(path), tmp_path, str(tmp_path)):
        assert CostModel.from_config(given) == expected
    assert estimate_memory(path) == estimate_memory(LLAMA_7B)


@pytest.mark.parametrize(("text", "what"), [("[1]", "holds no names"), ("{", "is not JSON")])
def test_a_file_that_is_no_config_is_named(tmp_path, text, what):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=what):
        CostModel.from_config(path)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("nowhere/config.json", r"there is no nowhere/config\.json\.$"),
        ("org/model-7b", r"there is no org/model-7b\. .*AutoConfig\.from_pretrained\('org/model-7b'\)"),
    ],
)
def test_a_path_without_a_file_shows_the_way_out(given, what):
    with pytest.raises(FileNotFoundError, match=what):
        CostModel.from_config(given)


@pytest.mark.parametrize("given", [3, None, [1], SimpleNamespace])
def test_a_config_of_another_kind_is_refused(given):
    with pytest.raises(TypeError, match="a dict with its names or the path of a config"):
        CostModel.from_config(given)


def test_a_vision_tower_attends_to_everything():
    tower = {
        "model_type": "qwen2_5_vl",
        "depth": 32,
        "hidden_size": 1280,
        "num_heads": 16,
        "intermediate_size": 3420,
    }
    assert CostModel.from_config(tower).attention == "full"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"config": {"hidden_size": 8}}, "num_hidden_layers"),
        ({"config": LLAMA_7B, "gpu": "v100"}, "no GPU is called 'v100'; there are a100"),
        ({"config": LLAMA_7B, "gpu": -1.0}, "flops"),
        ({"config": LLAMA_7B, "recompute": "some"}, "recompute"),
        ({"config": LLAMA_7B, "cp_method": "tree"}, "cp_method"),
        ({"config": LLAMA_7B, "tensor_parallel": 0}, "tensor_parallel"),
    ],
)
def test_bad_configs_are_named(arguments, what):
    with pytest.raises(ValueError, match=what):
        CostModel.from_config(**arguments)


def test_derived_coefficients_are_finite_numbers():
    cost = CostModel.from_config(QWEN3_30B_A3B, gpu="b200")
    assert np.all(np.isfinite([cost.linear, cost.quadratic, cost.fixed]))


# fmt: off
FAMILIES = [
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt2",
    "gpt_neox", "gptj", "opt", "bloom", "falcon", "starcoder2", "olmo2", "cohere", "granite",
    "stablelm", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "olmoe", "gpt_oss",
    "llama4_text", "qwen3_next", "jamba", "bamba", "lfm2", "smollm3", "glm4", "ernie4_5", "codegen",
    "gpt_bigcode", "mpt", "minimax",
]
# fmt: on


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_flops_match_the_weights_that_a_token_meets(family):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = transformers.AutoConfig.for_model(family)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings().weight
    looked_up = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)} - {id(head)}
    experts = model_experts(config)
    met = 0.0
    for name, weight in model.named_parameters():
        if weight.ndim >= 2 and id(weight) not in looked_up and "conv" not in name:
            met += weight.numel() * (experts if "experts" in name and "shared" not in name else 1.0)
    shape = model_shape(config)
    # State spaces and linear attention do work that no weight stands for; small projections are left out.
    tolerance = 0.03 if "linear" in shape.attention else 0.002
    assert (shape.layer_flops + shape.head_flops) / 2 == pytest.approx(met, rel=tolerance)


def model_experts(config):
    """Share of the experts that one token visits."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    experts = next((getattr(config, name) for name in names if getattr(config, name, None)), 1)
    return (getattr(config, "num_experts_per_tok", None) or 1) / experts
