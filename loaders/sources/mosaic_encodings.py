"""Encodings of values in MosaicML's MDS shards.

Numbers are little-endian. ``int`` is 8 bytes, ``int32``, ``float64`` and the like as many as they say. An
``ndarray`` has a header, less of it where the encoding names more: ``ndarray`` has a byte for the type of
its values, then a byte that holds 4 times the number of axes plus the base-2 logarithm of the bytes of each
size, then the sizes; ``ndarray:int32`` leaves out the type, ``ndarray:int32:3,4`` both. ``pil`` is width,
height and the length of the mode (u32 each), the mode, then the pixels. (mosaicml-streaming,
``base/format/mds/encodings.py``.)
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.sources.flat import ColumnError

VALUE_TYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
NUMBERS = frozenset(VALUE_TYPES.values())
AS_BYTES = ("bytes", "jpeg", "png")
"""Left as they are: pictures are decoded when a batch is read, not when a chunk is."""

Decode = Callable[[memoryview], Any]


def decoder(encoding: str, column: str, *, dtype: str | None = None) -> Decode:
    """What turns the bytes of a value into the value.

    Args:
        encoding: as the shard names it.
        column: for messages.
        dtype: read plain bytes as numbers of this type.

    Raises:
        ColumnError: an encoding that is not known here, or not safe to read.
    """
    name, _, detail = encoding.partition(":")
    if name in ("bytes", "ndarray") and dtype is not None:
        if dtype not in NUMBERS:
            raise ColumnError(f"column {column!r}: {dtype!r} is no type of numbers")
        if name == "bytes":
            return lambda data: np.frombuffer(data, dtype)
    if name in AS_BYTES:
        return bytes
    if name == "ndarray":
        return _array_decoder(detail, column)
    if name == "int":
        return lambda data: int.from_bytes(data, "little", signed=True)
    if name in NUMBERS:
        return lambda data: np.frombuffer(data, name)[0].item()
    simple: dict[str, Decode] = {
        "str": lambda data: str(data, "utf-8"),
        "json": lambda data: json.loads(bytes(data)),
        "str_int": lambda data: int(bytes(data)),
        "str_float": lambda data: float(bytes(data)),
        "pil": _picture,
    }
    if name in simple:
        return simple[name]
    if name == "pkl":
        raise ColumnError(
            f"column {column!r} holds pickled objects, which can run any code when they are read"
        )
    raise ColumnError(f"column {column!r} has an encoding that is not known here, {encoding!r}")


def _array_decoder(detail: str, column: str) -> Decode:
    dtype, _, shape = detail.partition(":")
    if dtype and dtype not in NUMBERS:
        raise ColumnError(f"column {column!r} has an encoding that is not known here, 'ndarray:{detail}'")
    if shape:
        sizes = tuple(map(int, shape.split(",")))
        return lambda data: np.frombuffer(data, dtype).reshape(sizes)
    return lambda data: _array(data, dtype)


def _array(data: memoryview, dtype: str) -> NDArray[Any]:
    at = 0
    if not dtype:
        if data[0] not in VALUE_TYPES:
            raise ValueError(f"an array has values of type {data[0]}, which is not known")
        dtype, at = VALUE_TYPES[data[0]], 1
    axes, width = data[at] >> 2, 1 << (data[at] & 3)
    sizes = np.frombuffer(data[at + 1 : at + 1 + axes * width], f"<u{width}")
    return np.frombuffer(data[at + 1 + axes * width :], dtype).reshape(sizes.astype(np.int64))


def _picture(data: memoryview) -> bytes:
    """The raw picture as a PNG file, which is what reads pictures from bytes elsewhere."""
    from PIL import Image

    width, height, letters = np.frombuffer(data[:12], "<u4").tolist()
    mode = str(data[12 : 12 + letters], "utf-8")
    target = io.BytesIO()
    Image.frombytes(mode, (width, height), bytes(data[12 + letters :])).save(target, "PNG")
    return target.getvalue()
