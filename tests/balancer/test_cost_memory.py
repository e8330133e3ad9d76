import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.costs.memory import MEMORY_BYTES, estimate_memory

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def test_weights_are_those_of_the_published_models():
    assert estimate_memory(LLAMA).weights == pytest.approx(8.03e9, rel=1e-3)
    assert estimate_memory(MIXTRAL).weights == pytest.approx(46.7e9, rel=1e-3)
    tied = {**LLAMA, "tie_word_embeddings": True}
    assert estimate_memory(LLAMA).weights - estimate_memory(tied).weights == 4096 * 128256


def test_activations_are_those_of_korthikanti_without_dropout():
    gpt = {
        "model_type": "gpt2", "hidden_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 64,
        "intermediate_size": 4 * 6144, "vocab_size": 0,
    }  # fmt: skip
    assert estimate_memory(gpt).bytes_per_token == 32 * 6144 * 48
    assert estimate_memory(gpt, recompute="full").bytes_per_token == 2 * 6144 * 48 + 32 * 6144


def test_state_is_sixteen_bytes_a_weight_shared_or_not():
    memory = estimate_memory(LLAMA)
    assert memory.state_bytes("step", 1) == 16 * memory.weights
    assert memory.state_bytes("step", 10**9) == pytest.approx(4 * memory.weights)
    assert memory.state_bytes("micro_batch", 10**9) == pytest.approx(4 * memory.layer_weights, rel=1e-2)
    halves = estimate_memory(LLAMA, tensor_parallel=2)
    assert halves.weights == memory.weights / 2
    assert halves.bytes_per_token == memory.bytes_per_token / 2
    assert estimate_memory(LLAMA, pipeline_stages=4).weights < memory.weights / 3


@given(st.sampled_from(["step", "micro_batch"]), st.integers(1, 4096), st.sampled_from(sorted(MEMORY_BYTES)))
def test_the_most_tokens_fit_and_one_more_does_not(sync, ranks, gpu):
    memory = estimate_memory(LLAMA, gpu, recompute="full")
    most = memory.max_tokens(sync, ranks)
    assert memory.used_bytes(most + 1, sync, ranks) > memory.room_bytes()
    assert most == 0 or memory.used_bytes(most, sync, ranks) <= memory.room_bytes()


def test_a_gpu_of_unknown_memory_has_no_estimate_unless_it_is_given():
    assert estimate_memory(LLAMA, 5e14) is None
    assert estimate_memory(LLAMA, 5e14, gpu_bytes=48e9).gpu_bytes == 48e9
    assert estimate_memory({"text_config": LLAMA}).weights == estimate_memory(LLAMA).weights
    with pytest.raises(ValueError, match="no GPU is called"):
        estimate_memory(LLAMA, "abacus")
