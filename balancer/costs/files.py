"""Cost models as JSON files: what `evenload calibrate` writes and a training script reads."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from balancer.costs.communication import Communication
from balancer.costs.measured import MeasuredTable
from balancer.costs.model import CostModel, FitReport

VERSION = 1
_WRITE = "Write one with `evenload calibrate` or CostModel.save."


def cost_to_dict(cost: CostModel) -> dict[str, Any]:
    """Plain data for JSON; coefficients keep every bit, since Python prints floats exactly."""
    data: dict[str, Any] = {"version": VERSION}
    for field in fields(cost):
        data[field.name] = getattr(cost, field.name)
    data["degrees"] = list(cost.degrees)
    data["report"] = None if cost.report is None else asdict(cost.report)
    data["table"] = None if cost.table is None else cost.table.to_dict()
    if cost.communication is not None:
        link = {field.name: getattr(cost.communication, field.name) for field in fields(cost.communication)}
        measured = link["measured_s_per_token"]
        link["measured_s_per_token"] = {str(degree): seconds for degree, seconds in measured.items()}
        data["communication"] = link
    return data


def cost_from_dict(data: dict[str, Any]) -> CostModel:
    """The model that `cost_to_dict` wrote. Raises ValueError for another version or unknown fields."""
    if not isinstance(data, dict):
        raise ValueError("it holds no names")
    values = dict(data)
    version = values.pop("version", None)
    if version != VERSION:
        raise ValueError(f"a cost model of version {VERSION} is needed, got version {version!r}.")
    unknown = sorted(set(values) - {field.name for field in fields(CostModel)})
    if unknown:
        raise ValueError(f"a cost model has no field {', '.join(unknown)}.")
    values["degrees"] = tuple(values.get("degrees", ()))
    if values.get("table") is not None:
        values["table"] = MeasuredTable.from_dict(values["table"])
    if values.get("report") is not None:
        report = values["report"]
        values["report"] = FitReport(**{**report, "degrees": tuple(report["degrees"])})
    if values.get("communication") is not None:
        link = dict(values["communication"])
        measured = link.get("measured_s_per_token", {})
        link["measured_s_per_token"] = {int(degree): seconds for degree, seconds in measured.items()}
        values["communication"] = Communication(**link)
    return CostModel(**values)


def save_cost(cost: CostModel, path: str | Path) -> None:
    """Write ``cost`` as JSON."""
    Path(path).write_text(json.dumps(cost_to_dict(cost), indent=2) + "\n", encoding="utf-8")


def load_cost(path: str | Path) -> CostModel:
    """Read what `save_cost` wrote.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a cost model; names the file.
    """
    try:
        return cost_from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is no such cost model. {_WRITE}") from None
    except IsADirectoryError:
        raise IsADirectoryError(
            f"{path} is a folder, and must be the file of a cost model. {_WRITE}"
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{error}".rstrip(".")
        raise ValueError(f"{path} is not a cost model: {reason}. {_WRITE}") from error
