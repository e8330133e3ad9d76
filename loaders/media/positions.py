"""Position ids with three axes (time, height, width) for samples with pictures: "mrope"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

POSITIONS = ("1d", "mrope", "text+mrope")
"""What ``position_ids`` may be: [1, T]; [3, 1, T]; or [4, 1, T] with the plain ones first, as models that
find the borders of packed samples from them want it."""


@dataclass(frozen=True, slots=True)
class Span:
    """One medium's tokens within a sample: the first of them, and their grid (time, rows, columns) in
    tokens.
    """

    start: int
    grid: tuple[int, int, int]
    time_step: float = 1.0
    """Positions from one temporal patch to the next; Qwen2.5-VL: seconds between them x tokens per second."""


def axis_positions(length: int, spans: Sequence[Span], *, advance: str = "all") -> NDArray[np.int64]:
    """[3, length] time, height and width position of each token.

    Text counts up equally on all axes. A medium's tokens lie on their grid, counted from where the text
    stopped; the text behind it goes on one above the largest position of any axis (``advance="all"``, as
    published), or of height and width only (``"space"``, as transformers 5 has it; the two differ for
    videos longer than large).

    Args:
        length: tokens of the sample.
        spans: media, by rising start.
        advance: where text goes on behind a medium.

    Source: Wang et al., Qwen2-VL, arXiv 2409.12191, section 2.1.
    """
    out = np.empty((3, length), np.int64)
    done, following = 0, 0
    for span in spans:
        text = span.start - done
        out[:, done : span.start] = following + np.arange(text)
        following += text
        times, rows, columns = span.grid
        end = span.start + times * rows * columns
        grid = out[:, span.start : end].reshape(3, times, rows, columns)
        at = (np.arange(times) * span.time_step).astype(np.int64)
        grid[0] = at[:, None, None]
        grid[1] = np.arange(rows)[:, None]
        grid[2] = np.arange(columns)
        grid += following
        deep = int(at[-1]) + 1 if advance == "all" else 0
        following += max(deep, rows, columns)
        done = end
    out[:, done:] = following + np.arange(length - done)
    return out


def position_rows(
    kind: str, length: int, spans: Sequence[Span], *, advance: str = "all"
) -> NDArray[np.int64]:
    """[3 or 4, length] positions of a sample for ``kind`` of `POSITIONS` other than "1d"."""
    axes = axis_positions(length, spans, advance=advance)
    return axes if kind == "mrope" else np.concatenate([np.arange(length)[None], axes])
