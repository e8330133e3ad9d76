"""Pictures to what a vision encoder takes, exactly as large as planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.media.blobs import Blob, name_of, opened
from loaders.media.errors import MediaError
from loaders.media.headers import (
    MAX_IMAGE_PIXELS,
    ImageHeader,
    is_pillow,
    open_image,
    orientation,
    shown_size,
)
from loaders.media.rules import FixedImage, ImageRule, PatchGrid, Tiles

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
"""Means of red, green and blue that CLIP's training pictures had, of 1; most vision encoders are fed with
them."""
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True)
class Look:
    """How pixel values are scaled: each channel to mean 0 and deviation 1 over CLIP's pictures, unless
    told otherwise.
    """

    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD

    def scaled(self, image: Any) -> Floats:
        """[3, height, width] of an RGB image or array [height, width, 3]."""
        return np.ascontiguousarray((np.asarray(image) * self.scale + self.shift).transpose(2, 0, 1))

    @property
    def scale(self) -> Floats:
        """[3] factor of each channel's pixel values."""
        return np.array([1 / (255 * one) for one in self.std], np.float32)

    @property
    def shift(self) -> Floats:
        """[3] what is added then."""
        return np.array([-m / s for m, s in zip(self.mean, self.std, strict=True)], np.float32)


TEMPORAL = 2
"""Times that a single picture is repeated to be one temporal patch deep."""
TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""What undoes each EXIF orientation, by Pillow's names."""


def decode_image(
    blob: Blob, rule: ImageRule, grid: Sequence[int], look: Look, *, max_pixels: int = MAX_IMAGE_PIXELS
) -> tuple[dict[str, NDArray[Any]], ImageHeader]:
    """One picture's features (see `image_features`), and its size.

    16-bit grey keeps its upper 8 bits; what is transparent becomes white; EXIF rotation is undone.

    Raises:
        MediaError: the picture cannot be decoded.
    """
    image, header = pixels_of(blob, max_pixels)
    return image_features(image, rule, grid, look), header


def image_features(image: Any, rule: ImageRule, grid: Sequence[int], look: Look) -> dict[str, NDArray[Any]]:
    """What the encoder takes.

    Args:
        image: an RGB image of Pillow, of any size.
        rule: what it is made into.
        grid: [3] of `Counts.grid`; the features always fit it.
        look: how pixel values are scaled.

    Returns:
        ``PatchGrid``: ``pixel_values`` float32[patches, channels x time x patch x patch] in the order of
        Qwen2-VL (merged blocks together), ``image_grid_thw`` int64[1, 3]. ``FixedImage``: ``pixel_values``
        float32[1, 3, size, size]. ``Tiles``: ``pixel_values`` float32[tiles, 3, size, size], the whole first,
        and ``image_sizes`` int64[1, 2] (height, width).
    """
    if isinstance(rule, PatchGrid):
        _, rows, columns = (int(part) for part in grid)
        pixels: Pixels = np.asarray(resized(image, columns * rule.patch, rows * rule.patch))
        patches = cut_patches(pixels[None], rule.patch, rule.merge, look, depth=TEMPORAL)
        return {"pixel_values": patches, "image_grid_thw": np.array([[1, rows, columns]], np.int64)}
    if isinstance(rule, FixedImage):
        return {"pixel_values": look.scaled(resized(image, rule.size, rule.size))[None]}
    return _tiles(image, rule, grid, look)


def pixels_of(blob: Blob, max_pixels: int = MAX_IMAGE_PIXELS) -> tuple[Any, ImageHeader]:
    """A decoded RGB image of Pillow, rotated as it is shown, and its size."""
    if is_pillow(blob):
        return _decoded(blob)
    with opened(blob) as file:
        return _decoded(open_image(file, name_of(blob), max_pixels))


def _decoded(image: Any) -> tuple[Any, ImageHeader]:
    from PIL import Image

    header, turn = shown_size(image), TURNS.get(orientation(image))
    try:
        image.load()
        image = to_rgb(image)
    except (OSError, SyntaxError, ValueError, IndexError, EOFError) as error:
        raise MediaError(f"it cannot be decoded ({error})") from None
    return (image if turn is None else image.transpose(getattr(Image.Transpose, turn))), header


def to_rgb(image: Any) -> Any:
    """Any picture as 8-bit RGB."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16-bit grey; older Pillows open it as 32-bit
        grey = np.clip(np.asarray(image), 0, 65535).astype(np.uint16) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise MediaError("it has floating-point pixels, whose range is unknown; store it with 8 or 16 bits")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "WHITE")
        return Image.alpha_composite(white, image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def resized(image: Any, width: int, height: int) -> Any:
    """The image at that size, bicubic."""
    from PIL import Image

    return image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BICUBIC)


def cut_patches(frames: Pixels, patch: int, merge: int, look: Look, *, depth: int) -> Floats:
    """[patches, channels x depth x patch x patch] of the frames of one temporal patch, scaled.

    frames: [time, height, width, 3], time being ``depth``, or 1 to be repeated. Patches that merge into one
    token follow each other; `loaders.media.reference.patches_of` is the slow twin. Bytes are put in order
    before they become numbers of four bytes, which is three times as fast as the other way round.
    """
    time, height, width, channels = frames.shape
    rows, columns = height // (patch * merge), width // (patch * merge)
    # [time, row, merge y, y, column, merge x, x, channel]
    # -> [row, column, merge y, merge x, channel, time, y, x]
    blocks = frames.reshape(time, rows, merge, patch, columns, merge, patch, channels)
    ordered = np.ascontiguousarray(blocks.transpose(1, 4, 2, 5, 7, 0, 3, 6))
    ordered = ordered.reshape(rows * columns * merge * merge, channels, time, patch * patch)
    out = np.empty((ordered.shape[0], channels, depth, patch * patch), np.float32)
    np.multiply(ordered, look.scale[:, None, None], out=out)
    out += look.shift[:, None, None]
    return out.reshape(ordered.shape[0], -1)


def _tiles(image: Any, rule: Tiles, grid: Sequence[int], look: Look) -> dict[str, NDArray[Any]]:
    from PIL import Image

    _, rows, columns = (int(part) for part in grid)
    canvas_w, canvas_h = columns * rule.size, rows * rule.size
    inner_w, inner_h = min(-(-image.width * canvas_h // image.height), canvas_w), canvas_h
    if canvas_w / image.width < canvas_h / image.height:
        inner_w, inner_h = canvas_w, min(-(-image.height * canvas_w // image.width), canvas_h)
    canvas = Image.new("RGB", (canvas_w, canvas_h))
    canvas.paste(resized(image, inner_w, inner_h), ((canvas_w - inner_w) // 2, (canvas_h - inner_h) // 2))
    whole = look.scaled(resized(image, rule.size, rule.size))
    # [3, rows, size, columns, size] -> [rows x columns, 3, size, size]
    cut = look.scaled(canvas).reshape(3, rows, rule.size, columns, rule.size).transpose(1, 3, 0, 2, 4)
    tiles = np.concatenate([whole[None], cut.reshape(-1, 3, rule.size, rule.size)])
    return {
        "pixel_values": np.ascontiguousarray(tiles),
        "image_sizes": np.array([[image.height, image.width]], np.int64),
    }
