"""Small media that the tests make, and a source of samples with media."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.sources.base import Rows, Source


def pixels(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def picture(width: int = 40, height: int = 30, *, kind: str = "PNG", seed: int = 0, **options: Any) -> bytes:
    from PIL import Image

    return encoded(Image.fromarray(pixels(width, height, seed)), kind, **options)


def encoded(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def turned(width: int, height: int, orientation: int) -> bytes:
    """A JPEG whose EXIF tag asks for a rotation."""
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = orientation
    return picture(width, height, kind="JPEG", exif=exif)


def bomb(side: int = 50_000) -> bytes:
    """A PNG of 2,500 million declared pixels and a few bytes."""
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def tone(seconds: float, rate: int = 8000, hertz: float = 440.0) -> NDArray[np.float32]:
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def sound(samples: NDArray[np.float32], rate: int = 8000, *, kind: str = "WAV", **options: Any) -> bytes:
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, **options)
    return file.getvalue()


def clip(
    num_frames: int = 20,
    width: int = 64,
    height: int = 48,
    *,
    fps: int = 10,
    kind: str = "mp4",
    codec: str = "mpeg4",
    top: int = 0,
) -> bytes:
    """A video whose k-th frame is grey of brightness 10 k; ``top`` brightens the upper half by so much."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for k in range(num_frames):
            frame = np.full((height, width, 3), min(10 * k, 250), np.uint8)
            frame[: height // 2] += np.uint8(top)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def turned_clip(num_frames: int = 4, width: int = 64, height: int = 48) -> bytes:
    """The same with a display matrix in its track header that turns it by 90 degrees."""
    data = bytearray(clip(num_frames, width, height, top=200))
    at = data.index(b"tkhd") + 4 + 40  # version 0: the matrix stands behind 40 bytes
    assert struct.unpack(">9i", data[at : at + 36]) == (0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    data[at : at + 36] = struct.pack(">9i", 0, 0x10000, 0, -0x10000, 0, 0, height << 16, 0, 0x40000000)
    return bytes(data)


class MediaRows(Source):
    """Rows given as dicts of ``input_ids``, perhaps ``labels``, and media columns."""

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        name: str = "album",
        columns: Sequence[str] = ("images", "audio", "video", "key", "m"),
    ) -> None:
        self.name = name
        self.given = list(rows)
        self.columns = columns

    def __len__(self) -> int:
        return len(self.given)

    def lengths(self) -> NDArray[np.int64]:
        return np.array([len(row["input_ids"]) for row in self.given], np.int64)

    def read(self, rows: NDArray[np.int64]) -> Rows:
        asked = [self.given[int(row)] for row in rows]
        empty = np.zeros(0, np.int64)
        labels = None
        if any("labels" in row for row in self.given):
            labels = np.concatenate([empty, *(np.array(row["labels"], np.int64) for row in asked)])
        return Rows(
            input_ids=np.concatenate([empty, *(np.array(row["input_ids"], np.int64) for row in asked)]),
            offsets=np.concatenate([[0], np.cumsum([len(row["input_ids"]) for row in asked])]).astype(
                np.int64
            ),
            labels=labels,
            columns={name: [row.get(name) for row in asked] for name in self.columns},
        )

    def origin(self, row: int) -> str:
        return f"{self.name}, row {row}"

    def fingerprint(self) -> str:
        return f"{self.name}-{len(self.given)}"


def text(num_tokens: int, first: int = 100) -> list[int]:
    return list(range(first, first + num_tokens))
