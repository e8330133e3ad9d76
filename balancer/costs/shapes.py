"""What a model's configuration says about its work per token and per attended pair.

Reads Hugging Face configurations (objects or dicts) by the names that their families use. Counts are of
matrix products in the forward pass: two FLOPs for each weight that a token meets. Norms, activations, rotary
embeddings and the embedding look-up are left out.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_UNGATED = frozenset(
    {
        "bert",
        "bloom",
        "clip_vision_model",
        "codegen",
        "falcon",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "gpt_neox",
        "gptj",
        "mpt",
        "nemotron",
        "nemotron_h",
        "opt",
        "phi",
        "roberta",
        "siglip_vision_model",
        "starcoder2",
        "vit",
        "whisper",
        "xlm-roberta",
    }
)
_ENCODERS = frozenset(
    {"bert", "clip_vision_model", "modernbert", "roberta", "siglip_vision_model", "vit", "xlm-roberta"}
)
_LINEAR_LAYERS = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent", "linear"})
_MLP_LAYERS = frozenset({"mlp", "moe"})
_CHUNK = 64  # tokens that chunked linear-attention kernels handle as a dense block


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """Work of one forward pass."""

    layer_flops: float
    """FLOPs for each token in all layers, attention pairs aside."""
    head_flops: float
    """FLOPs for each token in the output vocabulary."""
    pair_flops: float
    """FLOPs for each attended pair in one attention layer."""
    attention: str
    """Pattern or sum of patterns; a single pattern stands for ``attention_layers`` equal layers."""
    attention_layers: int
    """Layers that attend to pairs."""
    layers: int
    """All layers."""
    hidden: int
    """Width of the residual stream."""
    kv_width: int
    """Numbers for each token in one layer's keys and values."""
    qo_width: int
    """Numbers for each token in one layer's queries and attention output."""


class _Config:
    """Reads one of several names from a config object or a dict."""

    def __init__(self, config: Any) -> None:
        self.values: Mapping[str, Any]
        if isinstance(config, Mapping):
            self.values = config
        elif hasattr(config, "to_dict"):
            self.values = config.to_dict()
        elif hasattr(config, "__dict__") and not isinstance(config, type):
            self.values = vars(config)
        else:
            raise TypeError(
                "a model config must be a transformers config, a dict with its names or the path of a "
                f"config.json, got {config!r}."
            )
        inner = self.values.get("text_config") or self.values.get("llm_config")
        if inner is not None:
            self.values = _Config(inner).values

    def get(self, *names: str, default: Any = None) -> Any:
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        return default

    def need(self, *names: str) -> int:
        value = self.get(*names)
        if value is None:
            raise ValueError(
                f"the model config has none of {', '.join(names)}; it has "
                f"{', '.join(sorted(map(str, self.values)))[:400] or 'nothing'}. "
                "Give a dict with these names, or CostModel(linear, quadratic, fixed)."
            )
        return _count(names[0], value)


def _count(name: str, value: Any) -> int:
    """What a configuration says as a whole number of at least 1."""
    try:
        if int(value) == value and value >= 1:
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"the model config must have a whole number of at least 1 as {name}, it has {value!r}.")


def opened(config: Any) -> Any:
    """What a config.json holds, given its path or that of its folder; anything else as it is.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not the JSON of a config.
    """
    if not isinstance(config, str | os.PathLike):
        return config
    given = Path(config)
    path = given / "config.json" if given.is_dir() else given
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        way_out = f" For a model by name pass transformers.AutoConfig.from_pretrained({str(config)!r})."
        raise FileNotFoundError(
            "a model config must be a config.json, its folder, a dict or a transformers config, there is no "
            f"{path}.{'' if path.suffix == '.json' else way_out}"
        ) from None
    except ValueError as error:
        raise ValueError(f"a model config must be a config.json, {path} is not JSON: {error}.") from error
    if not isinstance(values, dict):
        raise ValueError(f"a model config must be a config.json, {path} holds no names.")
    return values


def model_shape(config: Any) -> ModelShape:
    """The shape of a transformers config, a dict with its names or the path of a config.json.

    Of several parts that of the language.

    Raises:
        ValueError: a name is missing, and lists the accepted ones; a file that is no config.
        FileNotFoundError: no such file.
        TypeError: nothing that holds names.
    """
    reader = _Config(opened(config))
    hidden = reader.need("hidden_size", "n_embd", "d_model", "embed_dim")
    kinds = _layer_kinds(reader)
    patterns = _layer_patterns(reader, kinds)
    attending = patterns.total() - patterns["linear"]
    projections, pair_flops, kv_width, qo_width = (
        _attention(reader, hidden) if attending else (0.0, 0.0, 0, 0)
    )
    layer_flops = attending * projections + _mlps(reader, hidden, kinds)
    if patterns["linear"]:
        layer_flops += patterns["linear"] * _linear_mixer(reader, hidden)
    return ModelShape(
        layer_flops=layer_flops,
        head_flops=2.0 * hidden * int(reader.get("vocab_size", default=0)),
        pair_flops=pair_flops,
        attention=_attention_string(patterns),
        attention_layers=attending,
        layers=len(kinds),
        hidden=hidden,
        kv_width=kv_width,
        qo_width=qo_width,
    )


def _attention_string(patterns: Counter[str]) -> str:
    if len(patterns) == 1:
        return next(iter(patterns))
    return " + ".join(f"{count}*{pattern}" for pattern, count in sorted(patterns.items()))


def _layer_patterns(reader: _Config, kinds: list[str]) -> Counter[str]:
    """How many layers have which attention pattern. Layers that are an MLP alone mix no tokens."""
    window, chunk = reader.get("sliding_window", "attention_window_size"), reader.get("attention_chunk_size")
    full = "full" if _is_encoder(reader) else "causal"
    names = {
        "sliding_attention": f"window:{window}",
        "chunked_attention": f"chunked:{chunk}",
        **dict.fromkeys(_LINEAR_LAYERS, "linear"),
    }
    return Counter(names.get(kind, full) for kind in kinds if kind not in _MLP_LAYERS)


def _is_encoder(reader: _Config) -> bool:
    # The vision towers of Qwen-VL carry the whole model's type; "depth" tells them apart.
    return reader.get("model_type") in _ENCODERS or "depth" in reader.values


def _layer_kinds(reader: _Config) -> list[str]:
    """[layers] kind of each layer, in the names that `layer_types` uses."""
    kinds = reader.get("layer_types", "layers_block_type")
    if kinds is not None:
        return list(kinds)
    if reader.get("hybrid_override_pattern") is not None:
        marks = {"*": "full_attention", "M": "mamba", "-": "mlp", "E": "moe"}  # Nemotron-H
        return [marks[mark] for mark in reader.get("hybrid_override_pattern")]
    layers = reader.need("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth")
    if reader.get("attn_layer_indices") is not None:
        attending = set(reader.get("attn_layer_indices"))
        return ["full_attention" if i in attending else "mamba" for i in range(layers)]
    if reader.get("attn_layer_period") is not None:
        period, offset = reader.get("attn_layer_period"), reader.get("attn_layer_offset", default=0)
        return ["full_attention" if i % period == offset else "mamba" for i in range(layers)]
    if reader.get("mamba_n_heads") is not None or str(reader.get("model_type")).startswith("mamba"):
        return ["mamba"] * layers
    window, chunk = reader.get("sliding_window", "attention_window_size"), reader.get("attention_chunk_size")
    if chunk is not None:
        rotary = reader.get("no_rope_layers") or [(i + 1) % 4 != 0 for i in range(layers)]
        return ["chunked_attention" if use else "full_attention" for use in rotary]
    if window is None or reader.get("use_sliding_window", default=True) is False:
        return ["full_attention"] * layers
    period = reader.get("sliding_window_pattern", "_sliding_window_pattern")
    if period is None and reader.get("model_type") == "gemma2":
        period = 2
    if period is not None:
        return ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(layers)]
    first = int(reader.get("max_window_layers", default=0))
    return ["full_attention" if i < first else "sliding_attention" for i in range(layers)]


def _attention(reader: _Config, hidden: int) -> tuple[float, float, int, int]:
    """(projection FLOPs a token, FLOPs a pair, kv width, query + output width) of one attention layer."""
    heads = reader.need("num_attention_heads", "n_head", "n_heads", "num_heads")
    if reader.get("kv_lora_rank") is not None:
        return _latent_attention(reader, hidden, heads)
    head_dim = int(reader.get("head_dim", default=hidden // heads))
    kv_heads = int(reader.get("num_key_value_heads", "num_kv_heads", default=heads))
    if reader.get("multi_query") and not reader.get("new_decoder_architecture"):
        kv_heads = 1  # Falcon and StarCoder; a number of key heads stands there all the same
    weights = hidden * head_dim * (2 * heads + 2 * kv_heads)
    return 2.0 * weights, 4.0 * heads * head_dim, 2 * kv_heads * head_dim, 2 * heads * head_dim


def _latent_attention(reader: _Config, hidden: int, heads: int) -> tuple[float, float, int, int]:
    """Multi-head latent attention (DeepSeek-V2): training expands keys and values to all heads."""
    rank, rope = reader.need("kv_lora_rank"), reader.need("qk_rope_head_dim")
    query_dim, value_dim = reader.need("qk_nope_head_dim") + rope, reader.need("v_head_dim")
    q_rank = reader.get("q_lora_rank")
    query = hidden * heads * query_dim if q_rank is None else q_rank * (hidden + heads * query_dim)
    keys_values = hidden * (rank + rope) + rank * heads * (query_dim - rope + value_dim)
    weights = query + keys_values + heads * value_dim * hidden
    both = heads * (query_dim + value_dim)
    return 2.0 * weights, 2.0 * both, both, both


def _linear_mixer(reader: _Config, hidden: int) -> float:
    """FLOPs a token in a layer without pairs: projections, state and the dense block inside a chunk."""
    if reader.get("linear_num_value_heads") is not None:  # gated delta net
        key_heads, value_heads = reader.need("linear_num_key_heads"), reader.need("linear_num_value_heads")
        key_dim, value_dim = reader.need("linear_key_head_dim"), reader.need("linear_value_head_dim")
        keys, values = key_heads * key_dim, value_heads * value_dim
        weights = hidden * (2 * keys + 3 * values + 2 * value_heads)
        return 2.0 * weights + value_heads * (
            4.0 * key_dim * value_dim + 2.0 * _CHUNK * (key_dim + value_dim)
        )
    inner = int(reader.get("mamba_expand", "expand", default=2)) * hidden
    state = int(reader.get("mamba_d_state", "ssm_state_size", "state_size", default=16))
    weights = hidden * (2 * inner + 2 * state) + inner * hidden
    return 2.0 * weights + 6.0 * inner * state


def _mlps(reader: _Config, hidden: int, kinds: list[str]) -> float:
    """FLOPs a token in the MLPs of all layers, with the experts that one token visits."""
    if str(reader.get("model_type")).startswith("mamba"):
        return 0.0
    alone = [kind for kind in kinds if kind in _MLP_LAYERS]
    layers = len(alone) or len(kinds)
    matrices = 3 if _is_gated(reader) else 2
    inner = reader.get("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    if inner is None:
        inner = hidden * float(reader.get("mlp_ratio", default=4))
    if reader.get("block_auto_adjust_ff_dim"):  # LFM2
        inner = 2 * inner / 3
    dense = 2.0 * matrices * hidden * float(inner)
    experts = int(reader.get("num_experts", "num_local_experts", "n_routed_experts", default=0))
    if experts < 2:
        return layers * dense
    visited = int(reader.get("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_top_k", default=1))
    expert_inner = float(reader.get("moe_intermediate_size", default=inner))
    shared_inner = float(
        reader.get("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", default=0)
    )
    shared_inner += int(reader.get("n_shared_experts", "num_shared_experts", default=0)) * expert_inner
    if reader.get("model_type") == "llama4_text":  # one shared expert, of the experts' size
        shared_inner = float(inner)
        dense = 2.0 * matrices * hidden * float(reader.get("intermediate_size_mlp", default=inner))
    sparse = 2.0 * matrices * hidden * (visited * expert_inner + shared_inner) + 2.0 * hidden * experts
    num_dense = alone.count("mlp") if alone else _dense_layers(reader, layers)
    return num_dense * dense + (layers - num_dense) * sparse


def _is_gated(reader: _Config) -> bool:
    if reader.get("gated_mlp") is not None:
        return bool(reader.get("gated_mlp"))
    kind = reader.get("model_type")
    if kind is not None:
        return kind not in _UNGATED and not (kind == "qwen2_vl" and _is_encoder(reader))
    return str(reader.get("hidden_act", "activation_function", default="silu")) in (
        "silu",
        "swish",
        "swiglu",
        "geglu",
    )


def _dense_layers(reader: _Config, layers: int) -> int:
    """Layers of a mixture-of-experts model whose MLP is dense."""
    if reader.get("moe_layers") is not None:
        return layers - len(reader.get("moe_layers"))
    if reader.get("expert_layer_period") is not None:
        period, offset = reader.get("expert_layer_period"), reader.get("expert_layer_offset", default=0)
        return sum(1 for i in range(layers) if i % period != offset)
    first = int(reader.get("first_k_dense_replace", default=0))
    named = set(reader.get("mlp_only_layers", default=()))
    step = int(
        reader.get("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", default=1) or 1
    )
    return sum(1 for i in range(layers) if i < first or i in named or (i + 1) % step != 0)
