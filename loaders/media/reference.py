"""Slow, obvious twins of the vectorised rules, one medium at a time."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def fit_to_factor(
    width: int, height: int, *, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """Width and height of one picture, see `loaders.media.grids.fit_to_factor`."""
    near = round(width / factor) * factor, round(height / factor) * factor
    if near[0] * near[1] > max_pixels:
        shrink = math.sqrt(width * height / max_pixels)
        small = [max(factor, math.floor(side / shrink / factor) * factor) for side in (width, height)]
        return small[0], small[1]
    if near[0] * near[1] < min_pixels:
        grow = math.sqrt(min_pixels / (width * height))
        large = [math.ceil(side * grow / factor) * factor for side in (width, height)]
        return large[0], large[1]
    return near


def patches_of(frames: NDArray[np.float32], patch: int, merge: int) -> NDArray[np.float32]:
    """[patches, dim] of one temporal patch's frames [time, channels, height, width], patch by patch.

    Order of patches: blocks of merge x merge, row by row, and within a block row by row.
    """
    _, _, height, width = frames.shape
    found = []
    for block_y in range(0, height, patch * merge):
        for block_x in range(0, width, patch * merge):
            for y in range(block_y, block_y + patch * merge, patch):
                for x in range(block_x, block_x + patch * merge, patch):
                    piece = frames[:, :, y : y + patch, x : x + patch]
                    found.append(piece.transpose(1, 0, 2, 3).ravel())
    return np.stack(found)


def axis_positions(length: int, spans: dict[int, tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Time, height and width position of each token; spans: first token -> grid in tokens."""
    found: list[tuple[int, int, int]] = []
    following = 0
    while len(found) < length:
        if len(found) in spans:
            times, rows, columns = spans[len(found)]
            start = following
            for t in range(times):
                for y in range(rows):
                    found += [(start + t, start + y, start + x) for x in range(columns)]
            following = start + max(times, rows, columns)
        else:
            found.append((following, following, following))
            following += 1
    return found


def mel_bands(mels: int, bins: int, sample_rate: int) -> NDArray[np.float64]:
    """[mels, bins] triangles on the Slaney scale, each of area 2 / (its width in Hz), by the definition."""

    def hertz(mel: float) -> float:
        return mel * 200 / 3 if mel < 15 else 1000 * math.exp(math.log(6.4) / 27 * (mel - 15))

    def mel_of(frequency: float) -> float:
        return (
            frequency * 3 / 200 if frequency < 1000 else 15 + 27 / math.log(6.4) * math.log(frequency / 1000)
        )

    top = mel_of(sample_rate / 2)
    edges = [hertz(top * k / (mels + 1)) for k in range(mels + 2)]
    bands = np.zeros((mels, bins))
    for m in range(mels):
        low, mid, high = edges[m : m + 3]
        for b in range(bins):
            frequency = b * (sample_rate / 2) / (bins - 1)
            rise, fall = (frequency - low) / (mid - low), (high - frequency) / (high - mid)
            bands[m, b] = max(0.0, min(rise, fall)) * 2 / (high - low)
    return bands
