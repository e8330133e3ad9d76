"""How many tokens a GPU's memory holds beside a model: an estimate, for choosing `max_tokens`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from balancer.costs.gpus import Gpu, find_gpu
from balancer.costs.shapes import ModelShape, model_shape, opened

MEMORY_BYTES: Mapping[str, float] = MappingProxyType(
    {"a100": 80e9, "h100": 80e9, "h200": 141e9, "b200": 180e9, "mi300x": 192e9}
)
"""Vendors' data sheets; the A100 with 80 GB, and the B200 as eight of them are sold together."""

_RESERVED = 0.1
# Adam in mixed precision (ZeRO, arXiv 1910.02054, section 3.1): bfloat16 weights and gradients, and a float32
# copy, momentum and variance.
_WEIGHTS, _GRADIENTS, _OPTIMIZER = 2.0, 2.0, 12.0
_GATHERED_LAYERS = 2  # the one that runs and the one that is fetched
_LOGIT_BYTES = 6.0  # bfloat16 and a float32 copy

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_VISITED = ("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_top_k")


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Bytes of one GPU: what a model's state takes, and what each token of a micro-batch adds.

    Assumes mixed-precision Adam, activations in bfloat16, attention that keeps no square matrix, and a tenth
    of the memory for everything else. Experts are taken as sharded like other weights.
    """

    gpu_bytes: float
    """Memory of one GPU."""
    weights: float
    """Weights of one pipeline stage's share on one tensor-parallel GPU, before data ranks shard them."""
    layer_weights: float
    """The same of one layer."""
    bytes_per_token: float
    """Kept from forward to backward for each token of a micro-batch, all stages in flight together."""

    def state_bytes(self, sync: str, ranks: int) -> float:
        """Weights, gradients and optimizer state.

        Where ranks meet once a step, weights and gradients are whole on each and the optimizer is shared out
        (DDP with ZeRO-1); where they meet in every micro-batch, all is shared out, and two layers are
        gathered at a time (FSDP, ZeRO-3).
        """
        if sync == "step":
            return self.weights * (_WEIGHTS + _GRADIENTS + _OPTIMIZER / ranks)
        shared = self.weights * (_WEIGHTS + _GRADIENTS + _OPTIMIZER) / ranks
        return shared + _GATHERED_LAYERS * _WEIGHTS * self.layer_weights

    def used_bytes(self, max_tokens: int, sync: str, ranks: int) -> float:
        """Bytes in use with a full micro-batch."""
        return self.state_bytes(sync, ranks) + self.bytes_per_token * max_tokens

    def room_bytes(self) -> float:
        """Bytes that state and tokens may take together."""
        return self.gpu_bytes * (1 - _RESERVED)

    def max_tokens(self, sync: str, ranks: int) -> int:
        """Most tokens of one micro-batch on one rank; 0 where the state alone does not fit."""
        return max(int((self.room_bytes() - self.state_bytes(sync, ranks)) / self.bytes_per_token), 0)


def estimate_memory(
    config: Any,
    gpu: Any = "h100",
    *,
    gpu_bytes: float | None = None,
    recompute: str = "none",
    tensor_parallel: int = 1,
    pipeline_stages: int = 1,
) -> MemoryEstimate | None:
    """What a model's shape says on memory; ``None`` where the GPU's is not known.

    A layer keeps, in bfloat16, four vectors of the residual stream's width (the inputs of both norms and
    their outputs), queries, keys, values, attention's output, and the MLP's inner vectors. In numbers a token
    that is 4 * hidden + weights / hidden, since every matrix has the residual stream on one of its sides; for
    GPT's shape it gives the 34 * hidden bytes of Korthikanti et al. (arXiv 2205.05198) less its dropout
    masks. Under ``recompute="full"`` only each layer's input is kept, and one layer as above.

    Args:
        config: as `balancer.costs.config.cost_from_config` takes it, and so are the others.
        gpu: its name gives the memory where ``gpu_bytes`` does not.
        gpu_bytes: memory of one GPU.
        recompute: ``"none"``, ``"attention"`` (which saves nothing that flash attention keeps) or ``"full"``.
        tensor_parallel: GPUs that share each layer, its activations included (sequence parallel).
        pipeline_stages: GPUs that share the stack. Each keeps as many micro-batches as there are stages.

    Raises:
        ValueError: an unknown GPU, or a config without the names needed.
    """
    device: Gpu = find_gpu(gpu)
    memory = MEMORY_BYTES.get(device.name) if gpu_bytes is None else gpu_bytes
    if memory is None:
        return None
    config = opened(config)
    shape, whole = model_shape(config), model_shape(_with_all_experts(config))
    vocabulary = shape.head_flops / (2 * shape.hidden)
    stack = whole.layer_flops / 2
    embeddings = vocabulary * shape.hidden * (1 if _tied(config) else 2)
    return MemoryEstimate(
        gpu_bytes=memory,
        weights=(stack / pipeline_stages + embeddings / min(pipeline_stages, 2)) / tensor_parallel,
        layer_weights=stack / max(shape.layers, 1) / tensor_parallel,
        bytes_per_token=(_kept_bytes(shape, recompute) + _LOGIT_BYTES * vocabulary) / tensor_parallel,
    )


def _kept_bytes(shape: ModelShape, recompute: str) -> float:
    everything = 2.0 * (4 * shape.hidden * shape.layers + shape.layer_flops / 2 / shape.hidden)
    if recompute != "full":
        return everything
    return 2.0 * shape.hidden * shape.layers + everything / max(shape.layers, 1)


def _values(config: Any) -> dict[str, Any]:
    """The names of a config's language part."""
    values = dict(config if isinstance(config, Mapping) else config.to_dict())
    inner = values.get("text_config") or values.get("llm_config")
    return values if inner is None else _values(inner)


def _tied(config: Any) -> bool:
    return bool(_values(config).get("tie_word_embeddings", False))


def _with_all_experts(config: Any) -> dict[str, Any]:
    """The config of a model in which every token visits every expert: its FLOPs count all weights."""
    values = _values(config)
    experts = next((values[name] for name in _EXPERTS if values.get(name)), None)
    if experts is not None:
        values |= {name: experts for name in _VISITED if values.get(name) is not None} or {
            _VISITED[0]: experts
        }
    return values
