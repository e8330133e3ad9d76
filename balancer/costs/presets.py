"""Published coefficients, by name.

They differ 16-fold in the length where linear and quadratic work meet: use them for comparison with the
publications, and calibrate for training.
"""

from __future__ import annotations

from balancer.costs.communication import Communication
from balancer.costs.model import CostModel
from packing.checks import nearest

# FlexSP (ASPLOS 2025, arXiv 2412.01523), GPT 7B (32 layers, hidden 4096) on A100-40GB, milliseconds; the
# square is of the length, not of its causal half, hence "full" attention. Ulysses moves query, key, value and
# output, forward and backward, in 2 bytes: 8 * layers * hidden * 2 / d bytes a token, at the measured
# all-to-all rates below. Degrees above 16 are not published; they cross nodes as 16 does.
_FLEXSP_BYTES_PER_TOKEN = 8 * 32 * 4096 * 2
_FLEXSP_RATES = {2: 154e9, 4: 137e9, 8: 121e9, 16: 8.7e9}

# Hydraulis (SIGMOD 2026, arXiv 2412.07894), LLaMA 7B on A800, milliseconds: linear, quadratic, fixed.
_HYDRAULIS_7B = {
    "tp1-pp2": (9.46e-2, 1.37e-6, 15.0),
    "tp2": (9.67e-2, 2.05e-6, 65.2),
    "tp4": (5.65e-2, 1.03e-6, 56.7),
    "tp8": (3.66e-2, 5.07e-7, 44.3),
    "tp16": (2.92e-2, 3.02e-7, 65.2),
}


def _flexsp() -> CostModel:
    link = Communication(
        method="ulysses",
        bytes_per_token=_FLEXSP_BYTES_PER_TOKEN,
        intra_node=121e9,
        inter_node=8.7e9,
        ranks_per_node=8,
        measured_s_per_token={d: _FLEXSP_BYTES_PER_TOKEN / d / rate for d, rate in _FLEXSP_RATES.items()},
    )
    return CostModel(
        0.18396e-3, 5.128e-9, 0.629, attention="full", communication=link, source="FlexSP, 7B on A100-40GB"
    )


def _hydraulis(scheme: str) -> CostModel:
    linear, quadratic, fixed = (value / 1e3 for value in _HYDRAULIS_7B[scheme])
    return CostModel(
        linear, quadratic, fixed, attention="full", source=f"Hydraulis, 7B on A800, {scheme.upper()}"
    )


PRESETS = ("generic", "flexsp-a100-7b", *(f"hydraulis-7b-{scheme}" for scheme in _HYDRAULIS_7B))


def preset(name: str) -> CostModel:
    """The cost model of that name. Raises ValueError that lists all names."""
    if name == "generic":
        return CostModel.generic()
    if name == "flexsp-a100-7b":
        return _flexsp()
    scheme = name.removeprefix("hydraulis-7b-")
    if name not in PRESETS:
        raise ValueError(
            f"no published cost model is called {name!r}; there are {', '.join(PRESETS)}."
            f"{nearest(name, PRESETS)}"
        )
    return _hydraulis(scheme)
