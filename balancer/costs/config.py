"""Coefficients from a model's shape and a GPU's peak: a start where nothing was measured."""

from __future__ import annotations

from typing import Any

from balancer.costs.communication import METHODS, Communication
from balancer.costs.gpus import Gpu, find_gpu
from balancer.costs.model import CostModel
from balancer.costs.shapes import ModelShape, model_shape
from packing.checks import check_choice

RECOMPUTE = ("none", "attention", "full")

FIXED_TOKENS = 500
"""A micro-batch's fixed cost in tokens of linear work; Hydraulis' fits of a 32B model say 505 to 1,423."""

# Passes of the forward work. A matrix product has two gradients; flash attention's backward does five
# products where its forward does two (Dao, FlashAttention-2, arXiv 2307.08691, section 4.1).
_MATMUL_PASSES = 3.0
_ATTENTION_PASSES = 3.5


def cost_from_config(
    config: Any,
    gpu: Any = "h100",
    *,
    recompute: str = "none",
    cp_method: str = "ring",
    tensor_parallel: int = 1,
    pipeline_stages: int = 1,
    ranks_per_node: int | None = None,
    fixed: float | None = None,
    overlap: float | None = None,
) -> CostModel:
    """Predicted seconds of forward + backward in bfloat16.

    Counts grouped-query and latent attention, gated MLPs, the experts that a token visits, the vocabulary,
    and stacks that mix full, windowed, chunked and linear layers. Load between experts is taken as even.

    Args:
        config: a transformers config, a dict with the same names, or the path of a config.json or its folder;
            of a multimodal model the language part (pass its ``vision_config`` for the encoder).
        gpu: ``"a100"``, ``"h100"``, ``"h200"``, ``"b200"``, ``"mi300x"``, a `Gpu`, its fields, or FLOP/s.
        recompute: ``"none"``, ``"attention"`` (attention's forward again) or ``"full"`` (every layer's).
        cp_method: how a CP group exchanges: ``"ring"``, ``"all_gather"`` or ``"ulysses"``.
        tensor_parallel: GPUs that share each layer of one data rank.
        pipeline_stages: GPUs that share the stack; the cost is that of one stage.
        ranks_per_node: data ranks in a node; `CostModel.for_topology` sets it as well.
        fixed: seconds of every micro-batch; by default the work of 500 tokens.
        overlap: share of attention that hides communication; by default 1 for a ring, 0 otherwise.

    Raises:
        ValueError: an unknown GPU, option or a config without the names needed.
        FileNotFoundError: no such config.json.
        TypeError: a config of another kind.
    """
    device, shape = find_gpu(gpu), model_shape(config)
    check_choice("recompute", recompute, RECOMPUTE)
    check_choice("cp_method", cp_method, METHODS)
    for name, count in (("tensor_parallel", tensor_parallel), ("pipeline_stages", pipeline_stages)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count!r}.")
    gpus = tensor_parallel * pipeline_stages
    linear = _linear_s(shape, device, recompute) / gpus
    linear += _tensor_parallel_s(shape, device, recompute, tensor_parallel) / pipeline_stages
    attention_passes = _ATTENTION_PASSES + (recompute != "none")
    pair_s = attention_passes * shape.pair_flops / (device.flops * device.attention_efficiency) / gpus
    mixed = "+" in shape.attention
    return CostModel(
        linear,
        pair_s if mixed else pair_s * shape.attention_layers,
        FIXED_TOKENS * linear if fixed is None else fixed,
        attention=shape.attention,
        communication=_communication(shape, device, cp_method, gpus, ranks_per_node, overlap),
        source=(
            f"{shape.layers} layers of width {shape.hidden} on {device.name}, {device.flops / 1e12:.0f} "
            f"TFLOP/s, of which matrix products are assumed to reach {device.matmul_efficiency:.0%} and "
            f"attention {device.attention_efficiency:.0%}"
        ),
    )


def _linear_s(shape: ModelShape, device: Gpu, recompute: str) -> float:
    layer_passes = _MATMUL_PASSES + (recompute == "full")
    flops = layer_passes * shape.layer_flops + _MATMUL_PASSES * shape.head_flops
    return flops / (device.flops * device.matmul_efficiency)


def _tensor_parallel_s(shape: ModelShape, device: Gpu, recompute: str, degree: int) -> float:
    """Seconds a token in all-reduces: two a layer and pass, each moving 2 (t - 1) / t of the activations."""
    if degree == 1:
        return 0.0
    reduces = 2 * shape.layers * (2 + (recompute == "full"))
    return (
        reduces * 2 * (degree - 1) / degree * shape.hidden * 2 / (device.intra_node * device.link_efficiency)
    )


def _communication(
    shape: ModelShape, device: Gpu, method: str, gpus: int, ranks_per_node: int | None, overlap: float | None
) -> Communication | None:
    """Bytes of bfloat16 keys and values: once forward, again backward, and their gradients."""
    if shape.attention_layers == 0:
        return None
    if method == "ulysses":
        width, passes = shape.kv_width + shape.qo_width, 2
    else:
        width, passes = shape.kv_width, 3
    return Communication(
        method=method,
        bytes_per_token=2.0 * width * passes * shape.attention_layers / gpus,
        intra_node=device.intra_node * device.link_efficiency,
        inter_node=device.inter_node * device.link_efficiency,
        latency_s=device.latency_s,
        inter_latency_s=device.inter_latency_s,
        rounds=shape.attention_layers * (4 if method == "ulysses" else passes),
        overlap=(1.0 if method == "ring" else 0.0) if overlap is None else overlap,
        ranks_per_node=ranks_per_node,
    )
