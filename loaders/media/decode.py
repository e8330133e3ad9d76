"""From a planned medium to its features, whatever its kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.media.audio import audio_features, decode_audio
from loaders.media.blobs import Blob
from loaders.media.config import MediaRules
from loaders.media.images import decode_image, image_features, pixels_of
from loaders.media.positions import Span
from loaders.media.processor import ProcessorRule
from loaders.media.rules import PatchGrid, TokensPerSecond, VideoGrid, WhisperFrames, seconds_per_grid
from loaders.media.video import decode_video, video_features

Features = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """What was known of one medium when the step was planned."""

    kind: str
    index: int
    """The how-manieth of its kind in the sample."""
    header: tuple[float, float, float, float]
    """Picture: width, height. Audio: samples, rate, channels. Video: width, height, frames, frames a
    second."""
    tokens: int
    units: int
    grid: tuple[int, int, int]


def decode(blob: Blob, planned: Planned, rules: MediaRules) -> tuple[Features, float]:
    """Features that fit the plan, and by which share the medium differs from it (1.0: a picture of another
    size).

    Raises:
        MediaError: it cannot be decoded.
    """
    rule = rules.kinds()[planned.kind].rule
    if isinstance(rule, WhisperFrames | TokensPerSecond):
        return decode_audio(blob, rule, planned.grid, int(planned.header[1]))
    if isinstance(rule, VideoGrid):
        frames, fps = int(planned.header[2]), planned.header[3]
        return decode_video(blob, rule, planned.grid, rules.look, num_frames=frames, fps=fps)
    if isinstance(rule, ProcessorRule):
        image, header = pixels_of(blob, rules.max_image_pixels)
        features = rule.decode(image, planned.grid)
    else:
        features, header = decode_image(
            blob, rule, planned.grid, rules.look, max_pixels=rules.max_image_pixels
        )
    return features, float((header.width, header.height) != planned.header[:2])


def blank(planned: Planned, rules: MediaRules) -> Features:
    """Features of black or silence that fit the plan, for a medium that cannot be decoded."""
    rule = rules.kinds()[planned.kind].rule
    if isinstance(rule, WhisperFrames | TokensPerSecond):
        return audio_features(np.zeros(1, np.float32), rule, planned.grid)
    times, rows, columns = planned.grid
    if isinstance(rule, VideoGrid):
        frame = np.zeros((rows * rule.patch, columns * rule.patch, 3), np.uint8)
        return video_features([frame] * (times * rule.temporal), rule, rules.look, 0.0)
    from PIL import Image

    if isinstance(rule, ProcessorRule):
        return rule.decode(Image.new("RGB", (columns, rows)), planned.grid)
    size = int(planned.header[0]), int(planned.header[1])
    if isinstance(rule, PatchGrid):
        size = (columns * rule.patch, rows * rule.patch)
    return image_features(Image.new("RGB", size), rule, planned.grid, rules.look)


def position_span(planned: Planned, start: int, rules: MediaRules) -> Span | None:
    """Where the medium's tokens lie on three axes; ``None`` for what counts up as text does: sound, fixed
    pictures.
    """
    rule = rules.kinds()[planned.kind].rule
    if not isinstance(rule, PatchGrid | VideoGrid):
        return None
    times, rows, columns = planned.grid
    time_step = 1.0
    if isinstance(rule, VideoGrid) and rules.tokens_per_second is not None:
        step_s = seconds_per_grid(
            int(planned.header[2]), planned.header[3], times * rule.temporal, rule.temporal
        )
        time_step = rules.tokens_per_second * step_s
    return Span(start, (times, rows // rule.merge, columns // rule.merge), time_step)
