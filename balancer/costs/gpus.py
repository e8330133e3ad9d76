"""Peak rates of common accelerators, and the share of them that training reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from balancer.costs.checks import check_coefficient
from packing.checks import nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """Rates of one accelerator. Peaks are the vendor's, efficiencies are assumptions.

    FlexSP's fit of a 7B model on A100s corresponds to 70 % of the peak in the linear part and 57 % in
    attention; DistCA's H100 table to 35 % in attention forward at 64K tokens. The defaults lie between:
    calibrate where it matters.
    """

    name: str
    flops: float
    """Dense bfloat16 peak, FLOP/s."""
    intra_node: float
    """Bytes/s that a rank receives over the links inside a node, one direction."""
    inter_node: float
    """Bytes/s that a rank receives from other nodes: one network card of the usual kind for each GPU."""
    matmul_efficiency: float = 0.6
    """Share of the peak in matrix products."""
    attention_efficiency: float = 0.5
    """Share of the peak in attention."""
    link_efficiency: float = 0.75
    """Share of the link rates in collectives."""
    latency_s: float = 1e-5
    """Seconds for each message inside a node."""
    inter_latency_s: float = 3e-5
    """The same, between nodes."""

    def __post_init__(self) -> None:
        for name in ("flops", "intra_node", "inter_node"):
            check_coefficient(f"Gpu.{name}", getattr(self, name), positive=True)
        for name in ("matmul_efficiency", "attention_efficiency", "link_efficiency"):
            if check_coefficient(f"Gpu.{name}", getattr(self, name), positive=True) > 1:
                raise ValueError(f"Gpu.{name} is a share of the peak and must not exceed 1.")


# Vendors' data sheets. FLOP/s: dense bfloat16, without sparsity. Links: half of the bidirectional NVLink rate
# (600, 900, 900, 1800 GB/s) or of MI300X's seven Infinity Fabric links (896 GB/s). Network: 200 Gb/s beside
# A100, 400 Gb/s beside the others.
GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(name="a100", flops=312e12, intra_node=300e9, inter_node=25e9),
        Gpu(name="h100", flops=989e12, intra_node=450e9, inter_node=50e9),
        Gpu(name="h200", flops=989e12, intra_node=450e9, inter_node=50e9),
        Gpu(name="b200", flops=2250e12, intra_node=900e9, inter_node=50e9),
        Gpu(name="mi300x", flops=1307e12, intra_node=448e9, inter_node=50e9),
    )
}


def find_gpu(gpu: Any) -> Gpu:
    """A GPU by name, from its peak FLOP/s, or from a mapping of `Gpu`'s fields.

    Raises:
        ValueError: an unknown name; lists the known ones.
    """
    if isinstance(gpu, Gpu):
        return gpu
    if isinstance(gpu, Mapping):
        return Gpu(**{"name": "custom", "intra_node": 450e9, "inter_node": 50e9, **gpu})
    if isinstance(gpu, str):
        if gpu.lower() in GPUS:
            return GPUS[gpu.lower()]
        raise ValueError(
            f"no GPU is called {gpu!r}; there are {', '.join(GPUS)}.{nearest(gpu, GPUS)} "
            "For another one give numbers: gpu={'flops': 989e12, 'intra_node': 450e9, 'inter_node': 50e9}."
        )
    return Gpu(name="custom", flops=gpu, intra_node=450e9, inter_node=50e9)
