"""What share of the GPUs' peak the steps use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from balancer.costs.attention import attended_pairs, parse_attention
from balancer.costs.checks import check_coefficient, check_lengths
from balancer.costs.gpus import find_gpu
from balancer.costs.shapes import model_shape

# A matrix product has two gradients; as in published MFU, nothing that is computed again counts (PaLM,
# arXiv 2204.02311, appendix B).
_PASSES = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFlops:
    """FLOPs that the model needs, and those that the hardware could do in the meantime.

    Args:
        per_token: FLOPs of forward + backward for each token, attention pairs aside.
        per_pair: FLOPs for each attended pair; with a stack of layers, per pair of one layer.
        attention: which pairs are attended, see `balancer.costs.attention`.
        peak: FLOP/s of one GPU, or of all GPUs that share a stage of one data rank (tensor parallel).

    Raises:
        ValueError: a number below 0, a peak of 0, or an unknown pattern.
    """

    per_token: float
    per_pair: float
    peak: float
    attention: str = "causal"

    def __post_init__(self) -> None:
        check_coefficient("ModelFlops.per_token", self.per_token)
        check_coefficient("ModelFlops.per_pair", self.per_pair)
        check_coefficient("ModelFlops.peak", self.peak, positive=True)
        parse_attention(self.attention)

    @classmethod
    def from_config(cls, config: Any, gpu: Any = "h100", *, tensor_parallel: int = 1) -> ModelFlops:
        """FLOPs from a model's configuration, the peak from a GPU, as `CostModel.from_config` takes them.

        Raises:
            ValueError: an unknown GPU, or a config without the names needed.
        """
        shape = model_shape(config)
        layers = 1 if "+" in shape.attention else shape.attention_layers
        return cls(
            per_token=_PASSES * (shape.layer_flops + shape.head_flops),
            per_pair=_PASSES * shape.pair_flops * layers,
            attention=shape.attention,
            peak=find_gpu(gpu).flops * tensor_parallel,
        )

    def __call__(self, lengths: ArrayLike) -> float:
        """FLOPs of forward + backward of these samples together."""
        num_tokens = check_lengths(lengths)
        pairs = attended_pairs(num_tokens, self.attention)
        return self.per_token * float(num_tokens.sum()) + self.per_pair * float(
            np.sum(pairs, dtype=np.float64)
        )
