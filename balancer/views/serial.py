"""A plan as versioned bytes or JSON, and back.

Bytes: 8 magic bytes with the version, the header's length as a little-endian uint32, a JSON header (scalars,
and name, type and length of each column), the columns one after the other in little-endian order, and 8 bytes
of BLAKE2b over all before.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.plan import MicroBatches, StepPlan

VERSION = 1
_MAGIC = b"EVENPL"
_DIGEST_BYTES = 8

Columns = dict[str, NDArray[Any]]


def plan_to_bytes(plan: StepPlan) -> bytes:
    """``plan`` as bytes that are equal on every platform."""
    scalars, columns = _split(plan)
    arrays = [column.astype(column.dtype.newbyteorder("<"), copy=False) for column in columns.values()]
    layout = [[name, array.dtype.str, array.size] for name, array in zip(columns, arrays, strict=True)]
    header = json.dumps({**scalars, "columns": layout}, sort_keys=True).encode()
    start = _MAGIC + VERSION.to_bytes(2, "little") + len(header).to_bytes(4, "little") + header
    body = start + b"".join(array.tobytes() for array in arrays)
    return body + _digest(body)


def plan_from_bytes(data: bytes) -> StepPlan:
    """The plan that `plan_to_bytes` wrote.

    Raises:
        ValueError: not a plan, another version, cut short or changed.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("these bytes are not a plan: its mark is missing. Write them with plan.to_bytes().")
    _check_version(int.from_bytes(data[6:8], "little"))
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if _digest(body) != digest:
        raise ValueError(f"these {len(data)} bytes are a plan that was cut short or changed.")
    end = 12 + int.from_bytes(data[8:12], "little")
    scalars = json.loads(body[12:end])
    columns: Columns = {}
    for name, kind, size in scalars.pop("columns"):
        array = np.frombuffer(body, dtype=np.dtype(kind), count=size, offset=end)
        columns[name] = array.astype(array.dtype.newbyteorder("="))
        end += array.nbytes
    return _join(scalars, columns)


def plan_to_json(plan: StepPlan) -> str:
    """``plan`` as JSON with every bit of its numbers."""
    scalars, columns = _split(plan)
    data = {name: {"dtype": column.dtype.name, "values": column.tolist()} for name, column in columns.items()}
    return json.dumps({"version": VERSION, **scalars, "columns": data})


def plan_from_json(text: str) -> StepPlan:
    """The plan that `plan_to_json` wrote. Raises ValueError for anything else."""
    try:
        data = json.loads(text)
        version, columns = data.pop("version"), data.pop("columns")
        arrays = {name: np.array(column["values"], dtype=column["dtype"]) for name, column in columns.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"this text is not a plan: {error!r}. Write it with plan.to_json().") from error
    _check_version(version)
    return _join(data, arrays)


def _split(plan: StepPlan) -> tuple[dict[str, Any], Columns]:
    """(scalars, columns) of a plan; columns of its micro-batches have a dot in their name."""
    scalars: dict[str, Any] = {}
    columns: Columns = {}
    for field in fields(StepPlan):
        value = getattr(plan, field.name)
        if isinstance(value, MicroBatches):
            names = [inner.name for inner in fields(MicroBatches)]
            columns |= {f"{field.name}.{name}": getattr(value, name) for name in names}
        elif isinstance(value, np.ndarray):
            columns[field.name] = value
        else:
            scalars[field.name] = value
    return scalars, columns


def _join(scalars: dict[str, Any], columns: Columns) -> StepPlan:
    values, batches = dict(scalars), {}
    for name, column in columns.items():
        owner, _, inner = name.partition(".")
        if inner:
            batches[inner] = column
        else:
            values[owner] = column
    try:
        plan = StepPlan(micro_batches=MicroBatches(**batches), **values)
    except TypeError as error:
        raise ValueError(f"this plan has other fields than this version knows: {error}.") from error
    _check_types(plan)
    return plan


def _check_types(plan: StepPlan) -> None:
    """Every field must be of the type that it is annotated with: JSON can be edited by hand."""
    scalars, columns = _split(plan)
    kinds: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}
    for field in fields(StepPlan):
        value, kind = scalars.get(field.name), kinds.get(str(field.type))
        if kind is not None and not isinstance(value, kind):
            raise ValueError(f"this is not a plan: {field.name} must be of type {field.type}, got {value!r}.")
    for owner, prefix in ((MicroBatches, "micro_batches."), (StepPlan, "")):
        for field in fields(owner):
            if not str(field.type).startswith("NDArray"):
                continue
            column = columns.get(prefix + field.name)
            if column is None or column.ndim != 1 or column.dtype.name not in str(field.type):
                found = "no column" if column is None else f"{column.dtype.name} of shape {column.shape}"
                raise ValueError(f"this is not a plan: {prefix}{field.name} must be one row, got {found}.")


def _check_version(version: Any) -> None:
    if version != VERSION:
        raise ValueError(f"a plan of version {VERSION} is needed, got version {version!r}. Plan again.")


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()
