"""The code that a page offers to paste: it runs as it stands where the page's files are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from balancer.cost import PRESETS
from loaders.reporting.question import Question, Setting

_TOKENS = "input_ids"
_DEFAULTS = {"recompute": "none", "tensor_parallel": 1, "pipeline_stages": 1, "ranks_per_node": None}


def loader_code(question: Question, best: Setting) -> str:
    """The loader with the recommended settings, and all that it needs."""
    degrees = ", ".join(map(str, best.cp_degrees)) + ("," if len(best.cp_degrees) == 1 else "")
    return (
        "from balancer import CostModel\n"
        "from loaders import DataLoader, open_source\n\n"
        f"cost = {question.cost_code}\n"
        f"source = {question.source_code or source_code(question.files, 'tokens')}\n"
        "loader = DataLoader(\n"
        f"    source, shuffle=True, global_batch_size={question.global_batch_size},\n"
        f"    max_tokens={best.max_tokens}, cp_degrees=({degrees}),\n"
        f'    sync="{best.sync}", cost=cost,\n)'
    )


def source_code(
    files: Sequence[str], lengths_from: str, *, column: str = _TOKENS, length: str | None = None
) -> str:
    """How the samples are opened.

    lengths_from: `FileLengths.kind`. Where that is nothing but numbers the samples lie elsewhere: a comment
    says so.
    """
    options = [] if column == _TOKENS else [f"column={_text(column)}"]
    options += [] if length is None else [f"length={_text(length)}"]
    if length is None and not all(kind.startswith("tokens") for kind in lengths_from.split(", ")):
        told = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
        return f'open_source("data/*.parquet")  # the samples whose lengths are in {told}'
    spec = _text(files[0]) if len(files) == 1 else f"[{', '.join(map(_text, files))}]"
    return f"open_source({', '.join([spec, *options])})"


def cost_code(
    cost: str | None, model: Path | None, gpu: Any, *, communication: bool = False, **shape: Any
) -> str:
    """How the cost of the page is made.

    Args:
        cost: ``--cost`` as it was given.
        model: the file or folder of the model's configuration.
        gpu: its name, or the fields of one that has none.
        communication: whether ``cost`` takes its communication from ``model``.
        shape: further options of `CostModel.from_config`; those that say nothing are left out.
    """
    kept = {name: value for name, value in shape.items() if value != _DEFAULTS.get(name)}
    options = "".join(f", {name}={_text(value)}" for name, value in kept.items())
    derived = f"CostModel.from_config({_text(str(model))}, gpu={_text(gpu)}{options})"
    if cost is None:
        return derived if model is not None else "CostModel.generic()"
    given = _given(cost)
    return f"{given}.with_communication({derived})" if communication else given


def _given(cost: str) -> str:
    if cost in PRESETS:
        return f"CostModel.preset({_text(cost)})"
    if cost.endswith(".json") or Path(cost).is_file():
        return f"CostModel.load({_text(cost)})"
    return f"CostModel({', '.join(repr(float(part)) for part in cost.split(','))})"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
