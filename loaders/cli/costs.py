"""The cost model that ``--cost``, ``--model`` and ``--gpu`` ask for, alike in every command that plans."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from balancer.cost import CostModel
    from balancer.costs.gpus import Gpu
    from balancer.topology import Topology

FREE = (
    "sharing a sequence over ranks costs nothing in this cost model: it was measured on one rank; add "
    "--model config.json --gpu h100 for the communication"
)
UNPRICED = (
    "sharing a sequence over ranks costs nothing in this cost model: it has no communication; give "
    "--model config.json --gpu h100 in its place, or one measured at these degrees"
)


def cost_model(
    cost: str | None,
    model: Path | None,
    gpu: str,
    *,
    cp_degrees: Sequence[int],
    topology: Topology,
    **shape: Any,
) -> CostModel:
    """What ``cost`` says, else what ``model`` on ``gpu`` does, else the generic decoder.

    A cost that was measured on one rank knows no communication. At degrees above 1 it takes the model's;
    without a model a sentence on stderr says that sharing is free. So it does of presets and numbers that
    have none; they are kept as they are.

    shape: further options of `CostModel.from_config`: ``tensor_parallel``, ``recompute``.

    Raises:
        ValueError, OSError: an unknown preset, file or GPU, or a configuration that cannot be used.
    """
    device = parse_gpu(gpu)  # also where no model asks for it: a misspelt one is not passed over
    given = None if cost is None and model is not None else parse_cost(cost or "generic")
    if given is not None and not (measured_alone(given) and max(cp_degrees) > 1):
        if given.table is None and given.communication is None and max(cp_degrees) > 1 and not given.degrees:
            sys.stderr.write(f"evenload: {UNPRICED}.\n")
        return given
    if model is None:
        assert given is not None
        sys.stderr.write(f"evenload: {FREE}.\n")
        # Said once: the warning of degrees that were not measured would say it again.
        return replace(given, degrees=()) if given.beyond == "warn" else given
    derived = _derived(model, device, topology, shape)
    if given is None:
        return derived
    source = f"{given.source}; communication derived for {device.name}"
    return replace(given.with_communication(derived), source=source)


def measured_alone(cost: CostModel) -> bool:
    """Whether the cost comes from measurements on one rank, which show no communication."""
    return cost.table is None and cost.communication is None and cost.degrees == (1,)


def _derived(model: Path, gpu: Gpu, topology: Topology, shape: dict[str, Any]) -> CostModel:
    from balancer.cost import CostModel

    config = read_config(model)
    with told_of(model):
        derived: CostModel = CostModel.from_config(
            config,
            gpu=gpu,
            pipeline_stages=topology.pipeline_stages,
            ranks_per_node=topology.ranks_per_node,
            **shape,
        )
    return derived


def parse_cost(text: str) -> CostModel:
    """A cost model from a preset, a file or ``linear,quadratic,fixed``. Raises ValueError or OSError."""
    from balancer.cost import PRESETS, CostModel
    from packing.checks import nearest

    if text in PRESETS:
        return CostModel.preset(text)
    if text.endswith(".json") or Path(text).is_file():
        return CostModel.load(text)
    try:
        linear, quadratic, fixed = [*map(float, text.split(",")), 0.0, 0.0][:3]
    except ValueError:
        raise ValueError(
            f"--cost must be a preset ({', '.join(PRESETS)}), a .json file or linear,quadratic,fixed in "
            f"seconds, got {text!r}.{nearest(text, PRESETS)}"
        ) from None
    if text.count(",") > 2:
        raise ValueError(f"--cost takes three numbers, linear,quadratic,fixed, got {text!r}.")
    return CostModel(linear, quadratic, fixed)


def parse_gpu(text: str) -> Gpu:
    """A GPU by name, or from ``FLOP/s`` or ``FLOP/s,bytes/s in a node,bytes/s between nodes``.

    Raises:
        ValueError: neither; lists the names.
    """
    from balancer.costs.gpus import GPUS, find_gpu
    from packing.checks import nearest

    if text.lower() in GPUS:
        return GPUS[text.lower()]
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 3):
        raise ValueError(
            f"--gpu must be one of {', '.join(GPUS)}, or numbers for another one: its peak in FLOP/s, or "
            "FLOP/s,bytes/s in a node,bytes/s between nodes, such as 165e12,25e9,12.5e9; got "
            f"{text!r}.{nearest(text, GPUS)}"
        )
    names = ("flops", "intra_node", "inter_node")
    found: Gpu = find_gpu({"name": "a given GPU", **dict(zip(names, numbers, strict=False))})
    return found


def read_config(model: Path) -> dict[str, Any]:
    """A model's configuration, from its file or folder. Raises ValueError or OSError."""
    path = model / "config.json" if model.is_dir() else model
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"--model must be a config.json or its folder, there is no {path}.") from None
    except ValueError as error:
        raise ValueError(f"--model must be a config.json, {path} is not JSON: {error}.") from error
    if not isinstance(config, dict):
        raise ValueError(f"--model must be a config.json, {path} holds no names.")
    return config


@contextmanager
def told_of(model: Path) -> Iterator[None]:
    """Name the file whose configuration cannot be used."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}."
        raise ValueError(f"--model {model}: {reason}") from error
