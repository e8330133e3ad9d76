"""How pictures are cut: sizes in, patches and tiles out. Pure and vectorised over I pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loaders.media.errors import MediaError

Ints = NDArray[np.int64]

MAX_ASPECT = 200
"""Longest side over shortest; Qwen2-VL's processor refuses more."""


def fit_to_factor(
    width: Ints, height: Ints, *, factor: int, min_pixels: int, max_pixels: int | Ints
) -> tuple[Ints, Ints]:
    """Sizes whose sides are multiples of ``factor`` and whose area lies in a range, with nearly the old
    aspect.

    Args:
        width: [I] pixels.
        height: [I] pixels.
        factor: pixels that each side must be a multiple of: patch x merge.
        min_pixels: least area.
        max_pixels: greatest area, one for all pictures or [I].

    Returns:
        [I] width and [I] height.

    Raises:
        MediaError: a picture more than `MAX_ASPECT` times as long as wide; its index comes first.

    Source: the "smart resize" of Qwen2-VL's image processor (transformers, Apache-2.0), with its rounding of
    halves to even.
    """
    check_aspect(width, height)
    limit = np.broadcast_to(np.asarray(max_pixels, np.float64), width.shape)
    near_w, near_h = (np.rint(side / factor) * factor for side in (width, height))
    area = near_w * near_h
    shrink = np.sqrt(width.astype(np.float64) * height / limit)
    small_w, small_h = (
        np.maximum(factor, np.floor(side / shrink / factor) * factor) for side in (width, height)
    )
    grow = np.sqrt(min_pixels / (width.astype(np.float64) * height))
    large_w, large_h = (np.ceil(side * grow / factor) * factor for side in (width, height))
    fitted_w = np.where(area > limit, small_w, np.where(area < min_pixels, large_w, near_w))
    fitted_h = np.where(area > limit, small_h, np.where(area < min_pixels, large_h, near_h))
    return fitted_w.astype(np.int64), fitted_h.astype(np.int64)


def check_aspect(width: Ints, height: Ints) -> None:
    """Raises MediaError for the first picture that is too long or has no area."""
    wrong = np.flatnonzero((np.minimum(width, height) < 1) | (aspect(width, height) > MAX_ASPECT))
    if wrong.size:
        at = int(wrong[0])
        raise MediaError(
            f"a picture of {width[at]} x {height[at]} pixels cannot be cut into patches: one side may be at "
            f"most {MAX_ASPECT} times the other"
        )


def aspect(width: Ints, height: Ints) -> NDArray[np.float64]:
    """[I] longest side over shortest."""
    return np.maximum(width, height) / np.maximum(np.minimum(width, height), 1)


def best_canvas(width: Ints, height: Ints, canvases: Sequence[tuple[int, int]]) -> Ints:
    """[I] index of the canvas (width, height) that keeps most of each picture's pixels and wastes the least.

    Source: the "any resolution" choice of LLaVA-NeXT (transformers' ``select_best_resolution``): most
    effective pixels first, then least waste, then list order.
    """
    best = np.full(width.shape, -1, np.int64)
    most = np.full(width.shape, -1, np.int64)
    least = np.full(width.shape, np.iinfo(np.int64).max, np.int64)
    for number, (canvas_w, canvas_h) in enumerate(canvases):
        scale = np.minimum(canvas_w / width, canvas_h / height)
        kept = np.minimum(
            (width * scale).astype(np.int64) * (height * scale).astype(np.int64), width * height
        )
        waste = canvas_w * canvas_h - kept
        better = (kept > most) | ((kept == most) & (waste < least))
        best[better], most[better], least[better] = number, kept[better], waste[better]
    return best


def unpadded(width: Ints, height: Ints, columns: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """[I] columns and [I] rows of a feature map that are left when the padding around the picture is cut off.

    Source: LLaVA-NeXT's unpadding (transformers' ``_get_unpadded_features``), with its rounding to 7 decimals
    before truncation.
    """
    wide = width / height > columns / rows
    new_rows = np.trunc(np.round(height * (columns / width), 7)).astype(np.int64)
    new_columns = np.trunc(np.round(width * (rows / height), 7)).astype(np.int64)
    return (
        np.where(wide, columns, columns - 2 * ((columns - new_columns) // 2)),
        np.where(wide, rows - 2 * ((rows - new_rows) // 2), rows),
    )
